//! Hessian-vector products and Jacobians, composed of backward passes.

use std::panic::Location;

use rustc_hash::FxHashMap;

use crate::{
    GradientOptions, declare::declare, expect_loss, grad_names::GradNames, gradients, ops_or_linked,
};
use autobwd_core::{
    Error, ErrorKind, OpDesc, OpInfoMap, Origin, Program, Result, Shape, Site, Var, VarDesc, Vars,
    operators::{Concat, Reshape2, Slice, SliceGrad},
};

/// Appends the operators that multiply the Hessian of `loss` with respect to all inputs by a vector. The result for
/// each input is `Σ_j ∂²loss/∂input∂input_j · vector_j`, in the input's shape, or `None` if it is zero because no path
/// leads there.
///
/// `inputs` are pairs of an input and its vector, a variable of the same shape. The Hessian itself is never computed:
/// this is the gradient of the product of gradient and vector (Pearlmutter, "Fast Exact Multiplication by the Hessian",
/// 1994), at a few times the cost of the gradient.
///
/// # Errors
/// The errors of [`gradients`](crate::gradients), also for operators whose gradients have no gradient; a loss of more
/// than one element; gradients of targets in `options`. The program is then unchanged.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Expr, Scope, Tensor, backward::hessian_vector_product};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F64, &[3], Expr::clone);
/// net.input("v", DType::F64, &[3]);
/// let loss = (w.square() * &w).sum(&[]).name();
/// let mut program = net.program()?.clone();
/// let products = hessian_vector_product(&mut program, &loss, &[("w", "v")], &Default::default())?;
/// let product = program.name(products[0].unwrap());
///
/// // The Hessian of Σ w³ is 6w on the diagonal.
/// let mut scope = Scope::new();
/// scope.set("w", Tensor::from_vec([3], vec![1.0, 2.0, 3.0])?);
/// let v = Tensor::from_vec([3], vec![1.0, 0.0, -1.0])?;
/// let fetched = Executor::new().run(&program, &mut scope, &[("v", &v)], &[product])?;
/// assert_eq!(fetched[0].slice::<f64>()?, [6.0, 0.0, -18.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn hessian_vector_product(
    program: &mut Program,
    loss: &str,
    inputs: &[(&str, &str)],
    options: &GradientOptions<'_>,
) -> Result<Vec<Option<Var>>> {
    expect_loss(program, loss)?;
    require_no_target_gradients("hessian_vector_product", options)?;
    let (inputs, vectors): (Vec<&str>, Vec<&str>) = inputs.iter().copied().unzip();
    let mut extended = program.clone();
    let first = gradients(&mut extended, &[loss], &inputs, options)?.entries();
    let (mut grads, mut given) = (vec![], vec![]);
    for (grad, vector) in first.iter().zip(vectors) {
        if let Some(grad) = grad {
            grads.push(extended.name(*grad).to_string());
            given.push(Some(vector));
        }
    }
    if grads.is_empty() {
        return Ok(first);
    }
    let grads: Vec<&str> = grads.iter().map(String::as_str).collect();
    let options = GradientOptions { target_gradients: Some(&given), ..*options };
    let products = gradients(&mut extended, &grads, &inputs, &options)?.entries();
    *program = extended;
    Ok(products)
}

fn require_no_target_gradients(function: &str, options: &GradientOptions<'_>) -> Result<()> {
    if options.target_gradients.is_none() {
        return Ok(());
    }
    let text = format!("`{function}` takes no target gradients; use `gradients`");
    Err(Error::new(ErrorKind::NoGradient, text))
}

/// Appends the operators that compute the Jacobian of `target` with respect to each of `inputs`:
/// `∂target[i, …]/∂input[j, …]` at `[i, …, j, …]`, or `None` if the target does not depend on the input.
///
/// Each element of the target has its own backward pass, so the program grows with the number of elements. For the
/// product of a vector and a Jacobian, use [`gradients`](crate::gradients) with the vector as gradient of the target.
///
/// # Errors
/// The errors of [`gradients`](crate::gradients); a target without elements; a target or an input of unknown shape;
/// gradients of targets in `options`; `reshape2`, `slice` or `concat`, which it emits, missing from the operators. The
/// program is then unchanged.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Expr, Scope, Tensor, backward::jacobian};
/// use autobwd_ops::Math;
///
/// let net = Builder::new();
/// let w = net.parameter("w", DType::F64, &[2], Expr::clone);
/// let y = (w.square() * w.sum(&[])).name();
/// let mut program = net.program()?.clone();
/// let jacobians = jacobian(&mut program, &y, &["w"], &Default::default())?;
/// let jacobian = program.name(jacobians[0].unwrap());
///
/// // y = (w0² · (w0 + w1), w1² · (w0 + w1))
/// let mut scope = Scope::new();
/// scope.set("w", Tensor::from_vec([2], vec![1.0, 2.0])?);
/// let fetched = Executor::new().run(&program, &mut scope, &[], &[jacobian])?;
/// assert_eq!(fetched[0].dims(), [2, 2]);
/// assert_eq!(fetched[0].slice::<f64>()?, [7.0, 1.0, 4.0, 16.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn jacobian(
    program: &mut Program,
    target: &str,
    inputs: &[&str],
    options: &GradientOptions<'_>,
) -> Result<Vec<Option<Var>>> {
    require_no_target_gradients("jacobian", options)?;
    let ops = ops_or_linked(options.ops)?;
    let site = Site::Here(Location::caller());
    let (var, dims) = known_dims(program, target)?;
    let input_dims: Vec<Shape> =
        inputs.iter().map(|name| Ok(known_dims(program, name)?.1)).collect::<Result<_>>()?;
    let mut extended = program.clone();
    let none = GradNames::new(program);
    let mut append = ModelWriter { ops, program: &mut extended, none: &none, site };
    let count = dims.iter().product();
    let flat = append.reshape("flat", var, &[count])?;
    let elements: Vec<Var> = (0..count).map(|i| append.element(flat, i)).collect::<Result<_>>()?;
    let mut rows: Vec<Vec<Var>> = vec![vec![]; inputs.len()];
    let mut first: Option<JacobianRow> = None;
    for (i, element) in elements.iter().enumerate() {
        let grads = match &first {
            Some(row) => row.copy_for_element(&mut extended, i),
            None => {
                let name = extended.name(*element).to_string();
                let grads = gradients(&mut extended, &[&name], inputs, options)?.entries();
                first = JacobianRow::of(&extended, &elements, &grads);
                grads
            }
        };
        rows.iter_mut().zip(grads).for_each(|(rows, grad)| rows.extend(grad));
    }
    let mut append = ModelWriter { ops, program: &mut extended, none: &none, site };
    let mut jacobians = vec![];
    for ((name, rows), input_dims) in inputs.iter().zip(rows).zip(input_dims) {
        // A path leads to all elements or to none.
        let there = !rows.is_empty();
        jacobians.push(there.then(|| append.rows(name, rows, &dims, &input_dims)).transpose()?);
    }
    *program = extended;
    Ok(jacobians)
}

/// A variable of known, non-empty shape.
fn known_dims(program: &Program, name: &str) -> Result<(Var, Shape)> {
    let var = program.expect_var(name)?;
    let dims = program.root().vars.get(&var).map(|desc| desc.dims.clone()).unwrap_or_default();
    match dims.known() {
        Some(known) if !known.contains(&0) => Ok((var, known)),
        known => {
            let fault = if known.is_some() { "it has no elements" } else { "its shape must be known" };
            let text = format!("`{name}` of shape {dims} cannot be part of a Jacobian: {fault}");
            Err(Error::new(ErrorKind::Shape, text))
        }
    }
}

/// The backward pass of the first element of a target. The backward passes of other elements differ in the element
/// only, so they are copied instead of built.
struct JacobianRow {
    elements: Vec<Var>,
    /// Index of the `slice` that extracts the first element; the other slices follow it.
    slice: usize,
    ops: Vec<OpDesc>,
    /// The variables that its operators write.
    vars: Vec<Var>,
    grads: Vec<Option<Var>>,
}

impl JacobianRow {
    /// None if an operator has a sub-block: saved step state can be consumed only once.
    fn of(program: &Program, elements: &[Var], grads: &[Option<Var>]) -> Option<JacobianRow> {
        let all = &program.root().ops;
        let slice = all.iter().position(|op| op.writes().any(|v| v == elements[0]))?;
        let ops = all.get(slice + elements.len()..)?.to_vec();
        let vars = ops.iter().flat_map(OpDesc::writes).collect();
        let has_blocks = ops.iter().any(|op| op.attrs.blocks().next().is_some());
        (!has_blocks).then(|| JacobianRow {
            elements: elements.to_vec(),
            slice,
            ops,
            vars,
            grads: grads.to_vec(),
        })
    }

    /// Appends the backward pass of another element, and returns its gradients.
    fn copy_for_element(&self, program: &mut Program, i: usize) -> Vec<Option<Var>> {
        let mut names: FxHashMap<Var, Var> = FxHashMap::default();
        names.insert(self.elements[0], self.elements[i]);
        for var in &self.vars {
            let name = program.name(*var).to_string();
            names.entry(*var).or_insert_with(|| program.fresh(&name));
        }
        let of = |var: Var| names.get(&var).copied().unwrap_or(var);
        let root = program.root_mut();
        for var in &self.vars {
            if let Some(desc) = root.vars.get(var).cloned() {
                let gradient_of = desc.gradient_of.map(of);
                root.vars.insert(of(*var), VarDesc { gradient_of, ..desc });
            }
        }
        for op in &self.ops {
            let mut op = op.clone();
            op.inputs.args_mut().chain(op.outputs.args_mut()).for_each(|v| *v = of(*v));
            if op.origin == (Origin::Gradient { of: self.slice }) {
                op.origin = Origin::Gradient { of: self.slice + i };
                if let Some(grad) = op.as_op::<SliceGrad>()
                    && let Some(Slice { starts, ends, .. }) = root.ops[self.slice + i].as_op()
                {
                    let (site, origin) = (op.site, op.origin);
                    op = OpDesc { site, origin, ..SliceGrad { starts, ends, ..grad }.into() };
                }
            }
            root.ops.push(op);
        }
        self.grads.iter().map(|grad| grad.map(of)).collect()
    }
}

/// Appends operators to the model.
struct ModelWriter<'a> {
    ops: &'a OpInfoMap,
    program: &'a mut Program,
    none: &'a GradNames,
    site: Site,
}

impl ModelWriter<'_> {
    fn op(&mut self, op: impl Into<OpDesc>) -> Result<()> {
        let op = OpDesc { site: Some(self.site), ..op.into() };
        let vars =
            declare(self.ops, self.program, self.none, Vars::default(), std::slice::from_ref(&op), &[])?.0;
        let root = self.program.root_mut();
        root.vars.extend(vars);
        root.ops.push(op);
        Ok(())
    }

    fn reshape(&mut self, name: &str, x: Var, dims: &[usize]) -> Result<Var> {
        let (out, x_shape) = (self.program.fresh(name), self.program.fresh("reshape2"));
        let shape = dims.iter().map(|d| wire(*d)).collect::<Result<_>>()?;
        self.op(Reshape2::of(x, out, x_shape, shape))?;
        Ok(out)
    }

    fn element(&mut self, flat: Var, i: usize) -> Result<Var> {
        let out = self.program.fresh("element");
        let (starts, ends) = (vec![wire(i)?], vec![wire(i + 1)?]);
        self.op(Slice { axes: vec![0], starts, ends, ..Slice::of(flat, out) })?;
        Ok(out)
    }

    /// Concatenates gradients of single elements.
    fn rows(&mut self, name: &str, rows: Vec<Var>, dims: &[usize], input_dims: &[usize]) -> Result<Var> {
        let row = [&[1], input_dims].concat();
        let rows: Vec<Var> = rows.into_iter().map(|r| self.reshape("row", r, &row)).collect::<Result<_>>()?;
        let all = self.program.fresh("rows");
        self.op(Concat { x: rows, out: all, axis: 0, axis_tensor: None })?;
        self.reshape(&format!("{name}@JACOBIAN"), all, &[dims, input_dims].concat())
    }
}

/// Converts to the integer type of `reshape2` and `slice`.
fn wire(n: usize) -> Result<i32> {
    i32::try_from(n)
        .map_err(|_| Error::new(ErrorKind::Shape, format!("{n} elements are more than int32 can count")))
}
