//! The pass over a model.

use std::collections::BTreeMap;

use autobwd::{
    BlockId, DType, Error, ErrorKind, OpDesc, OpInfoMap, Program, Result, Tensor, VarDesc,
    op::Op,
    operators::{ElementwiseAdd, Scale},
    program::Var,
};

use super::{
    Quantization,
    encode::{Encoded, encode},
};
use crate::{
    Model,
    matmul::{Addmm, Matmul, MatmulV2, Mul, QuantizedMatmul},
    mixed_precision::new_var,
    model::{matches, require_matches},
    shape::Transpose2,
};

/// What [`quantize`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct QuantizeReport {
    /// The names of the weights that are quantised now.
    pub weights: Vec<String>,
    /// The names of other parameters that match, each with the reason why it stays as it is.
    pub left: Vec<(String, String)>,
    /// The bytes of the weights before.
    pub bytes_before: usize,
    /// The bytes of their codes, scales and zero points.
    pub bytes_after: usize,
}

/// Quantises the weights of products whose names match a pattern, in which `*` stands for any text. They are frozen from
/// then on, and multiplied by [`quantized_matmul`](QuantizedMatmul), which computes its gradient for the other factor
/// only: a model trains adapters next to them.
///
/// The parameter `w` becomes a uint8 variable of codes; the variables `w.scale` and, with zero points, `w.zero_point` are
/// new. They are saved and loaded as all others. Parameters that match, but are no matrices, or are read by other
/// operators than products, stay as they are; the report says why.
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
/// A pattern that matches no parameter, or none that can be quantised: the model is then unchanged. A group size that is
/// no multiple of 4 (int8) or 8; zero points for NF4.
pub fn quantize(model: &mut Model, pattern: &str, quantization: Quantization) -> Result<QuantizeReport> {
    quantization.check()?;
    let ops = OpInfoMap::linked()?;
    let program = &model.program;
    let parameters: Vec<Var> = program.parameters().collect();
    let names: Vec<&str> = parameters.iter().map(|var| program.name(*var)).collect();
    require_matches(&[pattern], &names)?;
    let (mut found, mut report) = (BTreeMap::new(), QuantizeReport::default());
    for (var, name) in parameters.iter().zip(&names).filter(|(_, name)| matches(pattern, name)) {
        let views = views(model, *var);
        let encoded = transposition(program, &views).and_then(|transposed| {
            let value = model.scope.find(name).ok_or("it has no value in the scope")?;
            Ok((transposed, value.bytes().len(), encoded(value, transposed, quantization)?))
        });
        match encoded {
            Ok((transposed, bytes, weights)) => {
                report.weights.push(name.to_string());
                report.bytes_before += bytes;
                report.bytes_after += weights.tensors().map(|tensor| tensor.bytes().len()).sum::<usize>();
                found.insert(*var, (views, transposed, weights));
            }
            Err(reason) => report.left.push((name.to_string(), reason)),
        }
    }
    if found.is_empty() {
        let reasons = report.left.iter().map(|(name, reason)| format!("`{name}`: {reason}"));
        let text = format!("no parameter can be quantised: {}", reasons.collect::<Vec<_>>().join("; "));
        return Err(Error::new(ErrorKind::Program, text));
    }
    let mut program = program.clone();
    let mut values = vec![];
    let mut weights = BTreeMap::new();
    for (var, (views, transposed, QuantizedTensors { codes, scale, zero_point })) in found {
        let name = program.name(var).to_string();
        declare(&mut program, var, &codes);
        let mut declared = |slot: &str, value: Tensor| {
            let own = new_var(&mut program, &format!("{name}.{slot}"));
            declare(&mut program, own, &value);
            values.push((program.name(own).to_string(), value));
            own
        };
        let scale = declared("scale", scale);
        let zero_point = zero_point.map(|value| declared("zero_point", value));
        values.push((name, codes));
        for View { var: view, transposed: is_transpose } in views {
            let transposed = transposed != is_transpose;
            weights.insert(view, QuantizedVars { codes: var, scale, zero_point, transposed });
        }
    }
    for block in 0..program.blocks().len() {
        rewrite(&mut program, BlockId::new(block), &weights, quantization)?;
    }
    ops.verify(&program)?;
    model.program = program;
    for (name, value) in values {
        model.scope.set(&name, value);
    }
    Ok(report)
}

/// The values of quantised weights.
struct QuantizedTensors {
    codes: Tensor,
    scale: Tensor,
    zero_point: Option<Tensor>,
}

impl QuantizedTensors {
    fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        [&self.codes, &self.scale].into_iter().chain(&self.zero_point)
    }
}

/// What takes the place of a matrix.
struct QuantizedVars {
    codes: Var,
    scale: Var,
    zero_point: Option<Var>,
    /// Whether the matrix was the transpose of the weights.
    transposed: bool,
}

/// A parameter, or a variable that is its transpose, as files have it that PyTorch writes.
struct View {
    var: Var,
    transposed: bool,
}

/// A parameter and its transposes.
fn views(model: &Model, parameter: Var) -> Vec<View> {
    let program = &model.program;
    let mut views = vec![View { var: parameter, transposed: false }];
    for op in program.root().ops.iter().filter(|op| op.is::<Transpose2>()) {
        let Ok(Transpose2 { x, out, axis, .. }) = Transpose2::from_desc(op) else { continue };
        let is_result = model.fetches.iter().any(|name| name == program.name(out));
        let is_kept = program.root().vars.get(&out).is_some_and(|desc| desc.persistable);
        if x == parameter && axis == [1, 0] && !is_result && !is_kept {
            views.push(View { var: out, transposed: true });
        }
    }
    views
}

/// Declares what is kept and not trained.
fn declare(program: &mut Program, var: Var, value: &Tensor) {
    let desc = VarDesc::new(value.dtype(), value.meta().dims);
    program.root_mut().vars.insert(var, VarDesc { persistable: true, stop_gradient: true, ..desc });
}

/// Whether products read a parameter as its transpose, or why it cannot be quantised.
fn transposition(program: &Program, views: &[View]) -> std::result::Result<bool, String> {
    let ops = || (0..).zip(program.blocks()).flat_map(|(id, block)| block.ops.iter().map(move |op| (id, op)));
    let (parameter, transposes) = (views[0].var, &views[1..]);
    if let Some((_, op)) = ops().find(|(_, op)| op.writes().any(|written| written == parameter)) {
        return Err(format!("`{}` writes it: trained parameters cannot be quantised", op.ty));
    }
    let mut transposed = None;
    for View { var, transposed: is_transpose } in views {
        let is_view =
            |op: &OpDesc| transposes.iter().any(|view| op.writes().any(|written| written == view.var));
        // What a block reads is also an input of the operator that runs it.
        let reads = |op: &OpDesc| {
            op.attrs.blocks().next().is_none() && op.reads().any(|read| read == *var) && !is_view(op)
        };
        for (id, op) in ops().filter(|(_, op)| reads(op)) {
            let product = Product::of(program, BlockId::new(id), op, *var)?;
            transposed.get_or_insert(product.trans_y != *is_transpose);
        }
    }
    transposed.ok_or_else(|| "no operator reads it".into())
}

/// A product whose right factor is quantised.
struct Product {
    x: Var,
    out: Var,
    trans_y: bool,
    /// For `addmm`: the input, its factor, and the factor of the product.
    added: Option<(Var, f32, f32)>,
}

impl Product {
    /// The product that an operator computes of the parameter, or why it is none.
    fn of(program: &Program, block: BlockId, op: &OpDesc, var: Var) -> std::result::Result<Product, String> {
        let reason = |text: &str| Err(format!("`{}` {text}", op.ty));
        let failed = |e: Error| e.to_string();
        let (product, y, is_plain) = if op.is::<MatmulV2>() {
            let MatmulV2 { x, y, out, trans_x, trans_y } = MatmulV2::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y, added: None }, y, !trans_x)
        } else if op.is::<Matmul>() {
            let Matmul { x, y, out, transpose_x, transpose_y, alpha, .. } =
                Matmul::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y: transpose_y, added: None }, y, !transpose_x && alpha == 1.0)
        } else if op.is::<Mul>() {
            let Mul { x, y, out, x_num_col_dims, y_num_col_dims } = Mul::from_desc(op).map_err(failed)?;
            let rank = program.lookup(block, x).map(|desc| desc.dims.len());
            let is_last = rank == Some(x_num_col_dims as usize + 1) && y_num_col_dims == 1;
            (Product { x, out, trans_y: false, added: None }, y, is_last)
        } else if op.is::<Addmm>() {
            let Addmm { input, x, y, out, alpha, beta } = Addmm::from_desc(op).map_err(failed)?;
            (Product { x, out, trans_y: false, added: Some((input, alpha, beta)) }, y, input != var)
        } else {
            return reason("reads it, which is no product");
        };
        match y == var && product.x != var && is_plain {
            true => Ok(product),
            false => reason("reads it otherwise than as its right factor"),
        }
    }
}

/// Encodes a parameter, transposed if it is the transpose of the weights.
fn encoded(
    value: &Tensor,
    transposed: bool,
    quantization: Quantization,
) -> std::result::Result<QuantizedTensors, String> {
    let &[rows, cols] = value.dims() else { return Err(format!("it has the shape {:?}", value.dims())) };
    if value.dtype().arithmetic() != DType::F32 {
        return Err(format!("it is {}", value.dtype()));
    }
    let numbers: Vec<f32> = value.to_f64s().into_iter().map(|x| x as f32).collect();
    if numbers.iter().any(|x| !x.is_finite()) {
        return Err("it has elements that are not finite".into());
    }
    let (k, n) = if transposed { (cols, rows) } else { (rows, cols) };
    let per_cell = quantization.kind.rows_of_cell();
    if !k.is_multiple_of(per_cell) || k == 0 || n == 0 {
        return Err(format!("its products have {k} terms, not a multiple of {per_cell}"));
    }
    let number =
        |row: usize, col: usize| numbers[if transposed { col * cols + row } else { row * cols + col }];
    let Encoded { codes, scales, zero_points } = encode(quantization, n, &number, k);
    let groups = [scales.len() / n, n];
    let tensor = |e: Error| e.to_string();
    Ok(QuantizedTensors {
        codes: Tensor::from_vec([k / per_cell, n, 4], codes).map_err(tensor)?,
        scale: Tensor::from_vec(groups, scales).map_err(tensor)?,
        zero_point: match quantization.zero_points {
            true => Some(Tensor::from_vec(groups, zero_points).map_err(tensor)?),
            false => None,
        },
    })
}

/// Replaces the products of a block.
fn rewrite(
    program: &mut Program,
    id: BlockId,
    weights: &BTreeMap<Var, QuantizedVars>,
    quantization: Quantization,
) -> Result<()> {
    let ops = program.block_mut(id).map(|block| std::mem::take(&mut block.ops)).unwrap_or_default();
    let mut rewritten = Vec::with_capacity(ops.len());
    for mut op in ops {
        let read = op.reads().find_map(|var| Some((var, weights.get(&var)?)));
        let Some((view, vars)) = read else {
            rewritten.push(op);
            continue;
        };
        if op.writes().any(|written| weights.contains_key(&written)) {
            continue; // A transpose.
        }
        if op.attrs.blocks().next().is_some() {
            // What a block reads is an input of the operator that runs it.
            let read: Vec<(Var, &QuantizedVars)> =
                op.reads().filter_map(|var| Some((var, weights.get(&var)?))).collect();
            for (view, QuantizedVars { codes, scale, zero_point, .. }) in read {
                let Some(slot) = op.inputs.slot_of(view) else { continue };
                let others = op.inputs.get(slot.as_str()).to_vec().into_iter().filter(|var| *var != view);
                let read: Vec<Var> = others.chain([*codes, *scale]).chain(*zero_point).collect();
                op.inputs.set(slot, read);
            }
            rewritten.push(op);
            continue;
        }
        let Product { x, out, trans_y, added } =
            Product::of(program, id, &op, view).map_err(|text| Error::new(ErrorKind::Internal, text))?;
        let mut push = |desc: OpDesc| rewritten.push(OpDesc { site: op.site, origin: op.origin, ..desc });
        let mut part = |of: &str| {
            let var = program.fresh(of);
            let desc = program.lookup(id, out).cloned();
            if let (Some(block), Some(desc)) = (program.block_mut(id), desc) {
                block.vars.insert(var, VarDesc { persistable: false, ..desc });
            }
            var
        };
        let product = if added.is_some() { part("quantized_matmul") } else { out };
        push(
            QuantizedMatmul {
                x,
                codes: vars.codes,
                scale: vars.scale,
                zero_point: vars.zero_point,
                out: product,
                kind: quantization.kind,
                group_size: quantization.group_size as i32,
                trans_y: trans_y != vars.transposed,
            }
            .into(),
        );
        let Some((input, alpha, beta)) = added else { continue };
        let mut scaled = |x: Var, by: f32| {
            if by == 1.0 {
                return x;
            }
            let out = part("scale");
            push(Scale { x, out, scale: by.into(), bias: 0.0, bias_after_scale: true }.into());
            out
        };
        let (product, input) = (scaled(product, alpha), scaled(input, beta));
        push(ElementwiseAdd { x: product, y: input, out, axis: -1 }.into());
    }
    if let Some(block) = program.block_mut(id) {
        block.ops = rewritten;
    }
    Ok(())
}
