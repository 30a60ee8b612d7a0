//! Programs made from programs: losses, gradients, training steps.

use autobwd::{
    Backward, Builder, DType, Dims, Error, ErrorKind, Expr, Meta, Program, Result, append_backward,
    program::{ProgramSignature, SignatureEntry},
};
use autobwd_cli::{feed_metas, forget_source_lines};
use autobwd_models::{next_token_loss, token_loss};
use autobwd_ops::{
    Math,
    optim::{MemoryBudget, Optimizer, OptimizerSpec},
};

/// A loss of an output, by its name in PyTorch.
struct Loss {
    name: &'static str,
    /// The dtype and the shape of the target, from the dtype and the shape of the output.
    target: fn(Meta) -> Meta,
    of: fn(&Expr, &Expr) -> Expr,
}

const LOSSES: [Loss; 5] = [
    Loss {
        name: "cross_entropy",
        target: |output| Meta::new(DType::I64, without_last(output.dims)),
        of: token_loss,
    },
    Loss {
        name: "next_token",
        target: |output| Meta::new(DType::I64, without_last(output.dims)),
        of: next_token_loss,
    },
    Loss {
        name: "binary_cross_entropy_with_logits",
        target: |output| output,
        of: |output, target| output.sigmoid_cross_entropy(target).mean(),
    },
    Loss {
        name: "mse_loss",
        target: |output| output,
        of: |output, target| output.square_error(target).mean(),
    },
    Loss { name: "l1_loss", target: |output| output, of: |output, target| (output - target).abs().mean() },
];

fn without_last(dims: Dims) -> Dims {
    let rank = dims.len().saturating_sub(1);
    dims.iter().take(rank).copied().collect()
}

/// A program made from another one.
pub(crate) struct Derived {
    pub(crate) program: Program,
    /// The program that initialises what an optimizer keeps.
    pub(crate) startup: Option<Program>,
    /// Parameters without gradient, and other ends of its paths.
    pub(crate) warnings: Vec<String>,
}

/// The program with a loss between an output and an input `target`, which is new.
pub(crate) fn with_loss(model: &Program, kind: &str, output: &str, target: &str) -> Result<Derived> {
    let Some(loss) = LOSSES.iter().find(|loss| loss.name == kind) else {
        let known = LOSSES.map(|loss| format!("`{}`", loss.name)).join(", ");
        return Err(Error::new(ErrorKind::Attr, format!("there is no loss `{kind}`: known are {known}")));
    };
    let net = builder(model);
    let output = net.expr(output);
    let meta = (loss.target)(output.check()?.meta());
    let value = (loss.of)(&output, &net.input_with_dims(target, meta.dtype, meta.dims));
    let loss = value.check()?.name();
    let mut program = net.program()?.clone();
    let mut inputs = program.signature().inputs.clone();
    inputs.push(entry(target, target));
    finish(&mut program, inputs, vec![entry("loss", &loss)])?;
    Ok(Derived { program, startup: None, warnings: vec![] })
}

/// The program with the gradients of a loss with respect to variables, or to all parameters.
pub(crate) fn with_gradients(model: &Program, loss: &str, wrt: Option<&[&str]>) -> Result<Derived> {
    let mut program = model.clone();
    for name in wrt.unwrap_or_default() {
        let var = program.expect_var(name)?;
        let is_computed = program.root().ops.iter().any(|op| op.writes().any(|written| written == var));
        // Loaders mark inputs; their gradients are asked for.
        if let Some(desc) = program.root_mut().vars.get_mut(&var).filter(|_| !is_computed) {
            desc.stop_gradient = false;
        }
    }
    let found = append_backward(&mut program, loss, &Backward { parameters: wrt, ..Backward::default() })?;
    let gradients = found.pairs.iter().map(|(_, gradient)| program.name(*gradient));
    let gradients = gradients.map(|name| entry(name, name));
    let outputs = [output_entry(model, loss)].into_iter().chain(gradients).collect();
    let missing = found.missing.iter().map(ToString::to_string);
    let warnings = missing.chain(found.partial.iter().map(ToString::to_string)).collect();
    let inputs = model.signature().inputs.clone();
    finish(&mut program, inputs, outputs)?;
    Ok(Derived { program, startup: None, warnings })
}

/// The memory that a training step may take, on data of these shapes.
pub(crate) struct StepBudget<'a> {
    pub(crate) bytes: usize,
    pub(crate) shapes: &'a [(String, Vec<usize>)],
    pub(crate) threads: usize,
}

/// The program with the updates of an optimizer.
pub(crate) fn with_updates(
    model: &Program,
    loss: &str,
    optimizer: &OptimizerSpec,
    budget: Option<&StepBudget<'_>>,
) -> Result<Derived> {
    let net = builder(model);
    let (expr, backward) = (net.expr(loss), Backward::default());
    let updates = match budget {
        Some(StepBudget { bytes, shapes, threads }) => {
            let feeds = feed_metas(model, shapes)?;
            let budget = MemoryBudget::bytes(*bytes).feeds(&feeds).threads(*threads);
            optimizer.minimize_within(&expr, &backward, &budget)?.0
        }
        None => optimizer.minimize_with(&expr, &backward)?,
    };
    let warnings = updates.untrained.iter().map(|parameter| parameter.reason());
    let warnings = warnings.chain(updates.partial.iter().map(ToString::to_string)).collect();
    let (mut program, startup) = (net.program()?.clone(), net.startup().program()?.clone());
    finish(&mut program, model.signature().inputs.clone(), vec![output_entry(model, loss)])?;
    Ok(Derived { program, startup: Some(startup), warnings })
}

/// A builder that continues the program.
fn builder(model: &Program) -> Builder {
    let net = Builder::new();
    net.set_program(model.clone());
    net
}

fn entry(name: &str, variable: &str) -> SignatureEntry {
    SignatureEntry { name: name.into(), variable: variable.into() }
}

/// The output of a variable, with its name for users.
fn output_entry(model: &Program, variable: &str) -> SignatureEntry {
    let mut known = model.signature().outputs.iter();
    known.find(|output| output.variable == variable).cloned().unwrap_or_else(|| entry(variable, variable))
}

/// Names the inputs and outputs of a new program.
fn finish(program: &mut Program, inputs: Vec<SignatureEntry>, outputs: Vec<SignatureEntry>) -> Result<()> {
    forget_source_lines(program);
    program.set_signature(ProgramSignature { inputs, outputs })
}
