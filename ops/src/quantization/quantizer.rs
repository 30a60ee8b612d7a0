//! The pass over a model.

use std::collections::BTreeMap;

use autobwd::{
    BlockId, DType, Error, ErrorKind, OpInfoMap, Program, Result, Tensor, VarDesc,
    program::Var,
    tensor::{bf16, f16},
};

use super::{
    Quantization,
    encode::{Encoded, MatrixLayout, encode},
    plan::{Reads, View},
    rewrite::{QuantizedVars, rewrite},
};
use crate::{
    Model,
    mixed_precision::new_var,
    model::{matches, require_matches},
};

/// What [`quantize`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// The names of the weights that are quantised now.
    pub weights: Vec<String>,
    /// Those among them that other operators read, too: the parameters are kept next to their codes, and frozen.
    pub kept: Vec<String>,
    /// The names of other parameters that match, each with the reason why it stays as it is.
    pub left: Vec<(String, String)>,
    /// The bytes of the weights before.
    pub bytes_before: usize,
    /// The bytes of their codes, scales and zero points, and of the parameters that are kept.
    pub bytes_after: usize,
}

/// Quantises the weights of products whose names match a pattern, in which `*` stands for any text. They are frozen from
/// then on, and multiplied by [`quantized_matmul`](crate::matmul::QuantizedMatmul), which computes its gradient for the other factor
/// only: a model trains adapters next to them.
///
/// The parameter `w` becomes a uint8 variable of codes; the variables `w.scale` and, with zero points, `w.zero_point` are
/// new. They are saved and loaded as all others. Parameters that match, but are no matrices, or are read by other
/// operators than products, stay as they are; the report says why.
///
/// A table of tokens may also be the right factor of the product that computes logits. If the pattern is its whole name,
/// without `*`, products read codes, `w.codes`, and other operators go on reading `w`, which is frozen: products read a
/// quarter or an eighth of the bytes, but the model has both in memory.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, Model, nn::Linear, quantization::{Quantization, quantize}};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 64]);
/// let y = Linear::builder(&net, 64, 16).build().forward(&x);
/// let (mut executor, mut scope) = (Executor::new(), Scope::new());
/// executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
/// net.set_signature(&[("x", &x)], &[("y", &y)])?;
/// let mut model = Model::with_signature(net.program()?.clone(), scope)?;
///
/// let x = Tensor::from_vec([2, 64], (0..128).map(|i| (i % 7) as f32 - 3.0).collect())?;
/// let exact = model.run(&mut executor, &[&x])?;
/// let report = quantize(&mut model, "*", Quantization::INT8)?;
/// assert_eq!(report.weights, ["linear_0.w"]);
/// assert_eq!((report.bytes_before, report.bytes_after), (4096, 1024 + 128));
/// let near = model.run(&mut executor, &[&x])?;
/// let distance = |(x, y): (&f32, &f32)| (x - y).abs();
/// assert!(exact[0].slice::<f32>()?.iter().zip(near[0].slice::<f32>()?).map(distance).all(|d| d < 0.1));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// A pattern that matches no parameter, or none that can be quantised; a group size that is no multiple of 4 (int8) or 8;
/// zero points for NF4. The model is then unchanged.
pub fn quantize(model: &mut Model, pattern: &str, quantization: Quantization) -> Result<QuantizeReport> {
    let mut quantizer = Quantizer::new(model);
    quantizer.plan(pattern, quantization)?;
    for (name, value) in model.scope.iter() {
        quantizer.add(name, value)?;
    }
    quantizer.finish(model)
}

/// Quantises weights one by one, as [`quantize`] does, so that a model can be quantised while its values are read from a
/// file: they are never in memory together.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, tensor::TensorReader};
/// use autobwd_ops::{Model, nn::Linear, quantization::{Quantization, Quantizer}};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 64]);
/// let y = Linear::builder(&net, 64, 16).build().forward(&x);
/// net.set_signature(&[("x", &x)], &[("y", &y)])?;
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("weights.safetensors");
/// # let mut scope = Scope::new();
/// # Executor::new().run(&net.startup().program()?, &mut scope, &[], &[])?;
/// # scope.save(&path)?;
///
/// let mut model = Model::with_signature(net.program()?.clone(), Scope::new())?;
/// let mut quantizer = Quantizer::new(&model);
/// quantizer.plan("*.w", Quantization::NF4)?;
/// for item in TensorReader::open(&path)? {
///     let (name, value) = item?;
///     if !quantizer.add(&name, &value)? {
///         model.scope.set(&name, value);
///     }
/// }
/// let report = quantizer.finish(&mut model)?;
/// assert_eq!(report.weights, ["linear_0.w"]);
/// assert_eq!(model.scope.get("linear_0.w")?.dtype(), DType::U8);
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Quantizer {
    program: Program,
    results: Vec<String>,
    weights: BTreeMap<Var, PlannedWeight>,
}

/// A weight that is to be quantised.
struct PlannedWeight {
    quantization: Quantization,
    /// Whether it was asked for by its whole name.
    is_named: bool,
    /// How it is read, or why it stays as it is.
    reads: std::result::Result<Reads, String>,
    /// What it has become, and its bytes before.
    encoded: Option<(Encoded, usize)>,
}

impl Quantizer {
    /// A quantizer that changes nothing yet. The model need not have values.
    pub fn new(model: &Model) -> Quantizer {
        let (program, results) = (model.program.clone(), model.fetches.clone());
        Quantizer { program, results, weights: BTreeMap::new() }
    }

    /// Plans to quantise the weights whose names match a pattern, as [`quantize`] does. The last plan for a weight counts.
    ///
    /// # Errors
    /// A pattern that matches no parameter; a group size that is no multiple of 4 (int8) or 8; zero points for NF4.
    pub fn plan(&mut self, pattern: &str, quantization: Quantization) -> Result<()> {
        quantization.check()?;
        let program = &self.program;
        let parameters: Vec<(Var, &str)> = program.parameters().map(|var| (var, program.name(var))).collect();
        let names: Vec<&str> = parameters.iter().map(|(_, name)| *name).collect();
        require_matches(&[pattern], &names)?;
        let is_named = !pattern.contains('*');
        for (var, _) in parameters.into_iter().filter(|(_, name)| matches(pattern, name)) {
            let reads = Reads::of(program, &self.results, var).and_then(|reads| match reads.other {
                Some(reason) if !is_named => Err(reason),
                _ => Ok(reads),
            });
            self.weights.insert(var, PlannedWeight { quantization, is_named, reads, encoded: None });
        }
        Ok(())
    }

    /// Encodes the value of a variable, if it is to be quantised. Returns whether codes take its place in the model; a
    /// scope needs other values.
    ///
    /// # Errors
    /// Memory runs out.
    pub fn add(&mut self, name: &str, value: &Tensor) -> Result<bool> {
        let weight = self.program.find(name).and_then(|var| self.weights.get_mut(&var));
        let Some(PlannedWeight { quantization, reads, encoded, .. }) = weight else { return Ok(false) };
        let Ok(Reads { is_transposed, other, .. }) = reads else { return Ok(false) };
        match encoded_weight(value, *is_transposed, *quantization)? {
            Ok(codes) => {
                let is_replaced = other.is_none();
                *encoded = Some((codes, value.bytes().len()));
                Ok(is_replaced)
            }
            Err(reason) => {
                *reads = Err(reason);
                Ok(false)
            }
        }
    }

    /// Rewrites the program of the model, and sets the values of all weights that were added.
    ///
    /// # Errors
    /// No weight that can be quantised among those that were planned, or one that was planned by its whole name and cannot
    /// be; a model whose program is not the one of [`new`](Quantizer::new). The model is then unchanged.
    pub fn finish(self, model: &mut Model) -> Result<QuantizeReport> {
        let Quantizer { mut program, weights, .. } = self;
        if program != model.program {
            let text = "the program is not the one for which weights were quantised";
            return Err(Error::new(ErrorKind::Program, text));
        }
        let ops = OpInfoMap::linked()?;
        let (mut report, mut refused) = (QuantizeReport::default(), vec![]);
        let (mut values, mut quantized) = (vec![], BTreeMap::new());
        for (var, PlannedWeight { quantization, is_named, reads, encoded }) in weights {
            let name = program.name(var).to_string();
            let found = reads.and_then(|reads| Ok((reads, encoded.ok_or("it has no value in the scope")?)));
            match found {
                Ok((reads, encoded)) => {
                    report.add(&name, &reads, &encoded);
                    let vars = reads.declare(&mut program, var, quantization, encoded.0, &mut values);
                    quantized.extend(vars);
                }
                Err(reason) => {
                    refused.extend(is_named.then(|| format!("`{name}`: {reason}")));
                    report.left.push((name, reason));
                }
            }
        }
        report.require_weights(&refused)?;
        for block in 0..program.blocks().len() {
            rewrite(&mut program, BlockId::new(block), &quantized)?;
        }
        ops.verify(&program)?;
        model.program = program;
        values.into_iter().for_each(|(name, value)| model.scope.set(&name, value));
        Ok(report)
    }
}

impl std::fmt::Debug for Quantizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let names: Vec<&str> = self.weights.keys().map(|var| self.program.name(*var)).collect();
        f.debug_struct("Quantizer").field("weights", &names).finish_non_exhaustive()
    }
}

impl QuantizeReport {
    /// Adds a weight, its codes, and its bytes before.
    fn add(&mut self, name: &str, reads: &Reads, (encoded, bytes): &(Encoded, usize)) {
        self.weights.push(name.into());
        self.bytes_before += bytes;
        self.bytes_after += encoded.bytes();
        if reads.other.is_some() {
            self.kept.push(name.into());
            self.bytes_after += bytes;
        }
    }

    /// # Errors
    /// No weight, although some were planned; weights that were asked for by name and refused.
    fn require_weights(&self, refused: &[String]) -> Result<()> {
        let all = || self.left.iter().map(|(name, reason)| format!("`{name}`: {reason}")).collect::<Vec<_>>();
        let text = match self.weights.is_empty() {
            true if !self.left.is_empty() => {
                format!("no parameter can be quantised: {}", all().join("; "))
            }
            _ if !refused.is_empty() => format!("parameters cannot be quantised: {}", refused.join("; ")),
            _ => return Ok(()),
        };
        Err(Error::new(ErrorKind::Program, text))
    }
}

impl Reads {
    /// Declares what takes the place of a parameter in products, for each of its views, and adds the values.
    fn declare(
        self,
        program: &mut Program,
        parameter: Var,
        quantization: Quantization,
        Encoded { codes, scale, zero_point }: Encoded,
        values: &mut Vec<(String, Tensor)>,
    ) -> Vec<(Var, QuantizedVars)> {
        let name = program.name(parameter).to_string();
        let mut declared = |var: Option<Var>, slot: &str, value: Tensor| {
            let var = var.unwrap_or_else(|| new_var(program, &format!("{name}.{slot}")));
            let desc = VarDesc::new(value.dtype(), value.meta().dims);
            let frozen = VarDesc { persistable: true, stop_gradient: true, ..desc };
            program.root_mut().vars.insert(var, frozen);
            values.push((program.name(var).to_string(), value));
            var
        };
        let replaced = self.other.is_none().then_some(parameter);
        let codes = declared(replaced, "codes", codes);
        let scale = declared(None, "scale", scale);
        let zero_point = zero_point.map(|value| declared(None, "zero_point", value));
        if let Some(desc) = program.root_mut().vars.get_mut(&parameter) {
            desc.stop_gradient = true;
        }
        let is_product_transposed = self.is_transposed;
        let vars = |View { var, is_transposed, is_kept }| {
            let is_transposed = is_product_transposed != is_transposed;
            (var, QuantizedVars { codes, scale, zero_point, quantization, is_transposed, is_kept })
        };
        self.views.into_iter().map(vars).collect()
    }
}

/// Encodes a weight, transposed if it is the transpose of the right factor, or says why that is not possible.
///
/// # Errors
/// Memory runs out.
fn encoded_weight(
    value: &Tensor,
    is_transposed: bool,
    quantization: Quantization,
) -> Result<std::result::Result<Encoded, String>> {
    let &[outer, inner] = value.dims() else {
        return Ok(Err(format!("it has the shape {:?}", value.dims())));
    };
    let [rows, columns] = if is_transposed { [inner, outer] } else { [outer, inner] };
    let layout = MatrixLayout { rows, columns, is_transposed };
    let per_cell = quantization.kind.rows_of_cell();
    let is_filling_cells = rows.is_multiple_of(per_cell) && rows > 0 && columns > 0;
    let encoded = match value.dtype() {
        dtype if dtype.arithmetic() != DType::F32 => return Ok(Err(format!("it is {dtype}"))),
        _ if !is_filling_cells => {
            return Ok(Err(format!("its products have {rows} terms, not a multiple of {per_cell}")));
        }
        DType::F16 => encode(quantization, layout, value.slice()?, f16::to_f32)?,
        DType::BF16 => encode(quantization, layout, value.slice()?, bf16::to_f32)?,
        _ => encode(quantization, layout, value.slice()?, |x: f32| x)?,
    };
    Ok(encoded.ok_or_else(|| "it has elements that are not finite".into()))
}
