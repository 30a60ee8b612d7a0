//! Functions that a model writes out in several operators become the operators that exist for them.
//!
//! Exporters write one function in many forms: a product for a quotient, a constant before or after, a square root and a
//! reciprocal for `rsqrt`. So the operators of a [`Subgraph`] are not compared with forms, but run on samples, and so are the
//! [known functions](functions::known): a composition of a few analytic functions with the values of `gelu` is `gelu`.

mod attention;
mod functions;
mod product;
mod samples;
mod subgraph;

use std::collections::{HashMap, HashSet};

use autobwd::{
    OpDesc, OpInfoMap, Program, Result, VarDesc,
    program::{Attr, Var},
};

pub(super) use self::subgraph::Uses;
use self::{functions::KnownFunction, subgraph::Subgraph};

/// Replaces subgraphs of operators of the main block by single operators with the same results, but for rounding: `gelu`,
/// `silu`, `swish`, `mish`, `layer_norm`, `rms_norm`, `scaled_dot_product_attention`, and `matmul_v2` of transposed
/// factors. Values within a subgraph are gone, except where `is_kept` says that they are read by name: then the operators
/// stay. Returns the number of subgraphs.
///
/// Values of 16 bits are left alone, and so are normalisations over other dimensions than the last.
///
/// Attention gives 0 to a query that sees no key, where a quotient of zeros is NaN. So it is recognised where the model
/// makes zeros of NaN, as PyTorch's exporter writes it, or adds no infinite mask.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, model::recognise};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 4]);
/// let y = &x * 0.5 * ((&x / 2.0_f64.sqrt()).erf() + 1.0);
/// let mut program = (*net.program()?).clone();
/// let fetched = program.expect_var(&y.name())?;
/// assert_eq!(recognise(&mut program, |var| var == fetched)?, 1);
/// assert_eq!(program.root().ops.len(), 1);
/// assert!(program.to_string().contains("gelu(X=x"));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of [`OpInfoMap::linked`].
pub fn recognise(program: &mut Program, is_kept: impl Fn(Var) -> bool) -> Result<usize> {
    let uses = Uses::of(program, is_kept);
    let (mut taken, mut found, mut known) = (HashSet::new(), HashMap::new(), HashMap::new());
    // From the last operator, so that a function is seen before its parts.
    for end in (0..program.root().ops.len()).rev() {
        let candidate = find(program, &uses, end, &taken, &mut known)
            .or_else(|| attention::find(program, &uses, end))
            .or_else(|| product::find(program, &uses, end));
        let is_free = |subgraph: &Subgraph| {
            let are_fixed = subgraph.inputs.iter().all(|input| uses.is_fixed(*input));
            are_fixed && !subgraph.ops.iter().any(|i| taken.contains(i))
        };
        if let Some((subgraph, function)) = candidate.filter(|(subgraph, _)| is_free(subgraph)) {
            taken.extend(subgraph.ops.iter().copied());
            found.insert(end, (subgraph, function));
        }
    }
    let count = found.len();
    if count > 0 {
        replace(program, &uses, &found, &taken);
        super::infer_shapes(program, OpInfoMap::linked()?);
    }
    Ok(count)
}

/// The largest subgraph that ends with an operator and computes a known function. `known` are the functions of subgraphs
/// that were seen before, by their programs.
fn find(
    program: &Program,
    uses: &Uses,
    end: usize,
    taken: &HashSet<usize>,
    known: &mut HashMap<String, Option<KnownFunction>>,
) -> Option<(Subgraph, KnownFunction)> {
    let all = uses.subgraph(program, end, taken)?;
    all.parts(program, uses).into_iter().find_map(|subgraph| {
        let part = subgraph.program(program, uses)?;
        let function =
            known.entry(part.to_string()).or_insert_with(|| function(program, uses, &subgraph, &part));
        Some((subgraph, function.clone()?))
    })
}

/// The known function that has the values of a subgraph, which is also given as a program.
fn function(program: &Program, uses: &Uses, subgraph: &Subgraph, part: &Program) -> Option<KnownFunction> {
    let inputs = subgraph.samples(program)?;
    let values = samples::outputs(part, &inputs, samples::OUTPUT)?;
    functions::known(program, uses, subgraph).into_iter().find(|function| {
        let found = samples::outputs(&function.program, &inputs, &function.output);
        found.is_some_and(|found| samples::are_equal(&values, &found))
    })
}

/// Puts functions in the places of the last operators of their subgraphs. Operators that have become useless go.
fn replace(
    program: &mut Program,
    uses: &Uses,
    found: &HashMap<usize, (Subgraph, KnownFunction)>,
    taken: &HashSet<usize>,
) {
    let bypassed: HashSet<usize> =
        found.values().flat_map(|(subgraph, _)| &subgraph.bypassed).copied().collect();
    let (mut ops, mut gone, mut read) = (vec![], vec![], HashSet::new());
    for (i, op) in std::mem::take(&mut program.root_mut().ops).into_iter().enumerate().rev() {
        if let Some((subgraph, function)) = found.get(&i) {
            gone.extend(op.writes().filter(|var| *var != subgraph.output));
            for part in function.ops(program, subgraph).into_iter().rev() {
                read.extend(part.reads());
                ops.push(OpDesc { site: op.site, ..part });
            }
            continue;
        }
        let is_useless = || op.writes().all(|var| !read.contains(&var) && !uses.is_shared(var));
        let may_go = bypassed.contains(&i) || op.writes().any(|var| uses.is_constant(var));
        if taken.contains(&i) || may_go && is_useless() {
            gone.extend(op.writes());
        } else {
            read.extend(op.reads());
            ops.push(op);
        }
    }
    ops.reverse();
    let root = program.root_mut();
    root.ops = ops;
    gone.iter().for_each(|var| drop(root.vars.remove(var)));
}

/// The declaration of a variable of the main block that holds float32 or float64 numbers.
fn declared(program: &Program, var: Var) -> Option<&VarDesc> {
    program
        .root()
        .vars
        .get(&var)
        .filter(|desc| matches!(desc.dtype, autobwd::DType::F32 | autobwd::DType::F64))
}

/// The floating point numbers of an attribute.
fn numbers(attr: &Attr) -> Vec<f64> {
    match attr {
        Attr::F32(x) => vec![f64::from(*x)],
        Attr::F64(x) => vec![*x],
        Attr::F32s(all) => all.iter().map(|x| f64::from(*x)).collect(),
        Attr::F64s(all) => all.clone(),
        _ => vec![],
    }
}
