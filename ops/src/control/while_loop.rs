//! `while_loop`, and helpers for the sub-blocks of all control flow.

use std::panic::Location;

use autobwd::{
    BlockId, Builder, DType, Error, ErrorKind, Expr, New, Result, Var, VarDesc, emit, program::VarKind,
    tensor::Dim,
};

use super::While;
use crate::shape::Assign;

/// A variable for the saved step state that the gradient reads.
pub(super) fn scopes(net: &Builder) -> Expr {
    let desc = VarDesc::new(DType::F32, autobwd::Dims::from([]));
    net.variable(net.block(), "step_scopes", VarDesc { kind: VarKind::StepScopes, ..desc })
}

/// The expression of a variable.
pub(super) fn expr(net: &Builder, var: Var) -> Expr {
    net.existing(var)
}

/// The variables of the surrounding block that `block` overwrites, except `known` ones.
pub(super) fn overwritten(net: &Builder, block: BlockId, known: &[Expr]) -> Result<Vec<Expr>> {
    let others = net.program()?.outer_writes(block).into_iter();
    let others: Vec<Var> = others.filter(|v| known.iter().all(|x| x.var() != *v)).collect();
    Ok(others.into_iter().map(|v| expr(net, v)).collect())
}

/// A copy of a value.
pub(super) fn copy(x: &Expr) -> Expr {
    emit(Assign { x: x.into(), out: New }).out
}

/// A copy of a value whose dimensions `axes` may change from step to step of a loop; `-1` is the last one. In eager
/// mode, all dimensions may change. Fails for a dimension that the value does not have.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, concat, control::{dynamic_dims, while_loop}};
///
/// // Append doubled rows until their sum reaches a limit.
/// let net = Builder::new();
/// let row = net.input("row", DType::F32, &[1, 2]);
/// let rows = while_loop(
///     &[dynamic_dims(&row, &[0])],
///     |x| x[0].sum(&[]).less_than(&((&row * 0.0).sum(&[]) + 40.0)),
///     |x| vec![concat(&[&x[0], &(&x[0] * 2.0)], 0)],
/// );
/// let row = Tensor::from_vec([1, 2], vec![1.0_f32, 0.5])?;
/// let fetched =
///     Executor::new().run(&net.program()?, &mut Scope::new(), &[("row", &row)], &[&rows[0].name()])?;
/// assert_eq!((fetched[0].dims(), fetched[0].to_f64s().iter().sum()), (&[8, 2][..], 40.5));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
#[track_caller]
pub fn dynamic_dims(x: &Expr, axes: &[i32]) -> Expr {
    let (net, mut meta) = (x.builder(), x.meta());
    if x.check().is_err() {
        return x.clone();
    }
    for axis in axes {
        let at =
            usize::try_from(*axis).ok().or_else(|| meta.rank().checked_sub(axis.unsigned_abs() as usize));
        let Some(dim) = at.and_then(|at| meta.dims.get_mut(at)) else {
            return net.failed(Error::new(ErrorKind::Shape, format!("{x} has no dimension {axis}")));
        };
        *dim = Dim::UNKNOWN;
    }
    if net.is_eager() {
        return copy(x);
    }
    let stop_gradient = !meta.dtype.is_float();
    let desc = VarDesc { stop_gradient, ..VarDesc::new(meta.dtype, meta.dims) };
    let out = net.variable(net.block(), "varying", desc);
    emit(Assign { x: x.into(), out: (&out).into() }).out
}

/// A copy of a value without the names of its dimensions, which another step may not keep.
fn nameless(x: &Expr) -> Expr {
    let named = x
        .dims()
        .iter()
        .enumerate()
        .filter(|(_, dim)| dim.is_named())
        .map(|(axis, _)| axis as i32)
        .collect::<Vec<_>>();
    if named.is_empty() { copy(x) } else { dynamic_dims(x, &named) }
}

/// Adds to an error the block and the line where the loop or branch was requested.
#[track_caller]
pub(super) fn asked(net: &Builder) -> impl Fn(Error) -> Error + use<> {
    let at = Location::caller();
    let block = if net.is_eager() { String::new() } else { format!("block {}, ", net.block().index()) };
    move |e| e.within(|| format!("{block}at {}:{}", at.file(), at.line()))
}

/// Checks that a sub-block returns the dtype and shape that were there before.
pub(super) fn same(what: &str, names: (&str, &str), before: &Expr, after: &Expr) -> Result<()> {
    let (a, b) = (before.check()?.meta(), after.check()?.meta());
    if a.dtype == b.dtype && a.dims.agrees(&b.dims) {
        return Ok(());
    }
    let (one, other) = names;
    let text = format!("{what}: {one} is {before}, {other} is {after}");
    Err(Error::new(ErrorKind::Shape, text))
}

/// Runs `body` on variables while `condition` holds, and returns their last values. Both receive the current values.
/// `body` returns the next ones, of the same dtypes and shapes; dimensions that change must be unknown
/// ([`dynamic_dims`]).
///
/// Gradients flow through the loop, also into variables of the surrounding block that the body reads. Variables of the
/// surrounding block that the body overwrites, such as tensor arrays or the running statistics of a layer, are carried
/// from step to step and stay overwritten.
///
/// In eager mode, it is a loop of Rust: condition and body are called for every step.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, control::while_loop};
///
/// // Powers of two up to a limit.
/// let net = Builder::new();
/// let limit = net.input("limit", DType::F32, &[]);
/// let one = &limit * 0.0 + 1.0;
/// let last = while_loop(&[one], |x| x[0].less_than(&limit), |x| vec![&x[0] * 2.0]);
/// let hundred = Tensor::scalar(100.0_f32)?;
/// let fetched =
///     Executor::new().run(&net.program()?, &mut Scope::new(), &[("limit", &hundred)], &[&last[0].name()])?;
/// assert_eq!(fetched[0].item()?, 128.0);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// All returned expressions fail if the condition is not one bool, or if the body fails, returns other dtypes or shapes
/// or another number of values, or overwrites a parameter. Without variables, one failed expression is returned.
#[track_caller]
pub fn while_loop(
    vars: &[Expr],
    condition: impl FnMut(&[Expr]) -> Expr,
    body: impl FnMut(&[Expr]) -> Vec<Expr>,
) -> Vec<Expr> {
    let Some(net) = vars.first().map(|var| var.builder().clone()) else {
        let text = "a loop needs at least one variable";
        return vec![Builder::new().failed(Error::new(ErrorKind::Slot, text))];
    };
    match repeat(&net, vars, condition, body) {
        Ok(last) => last,
        Err(e) => vec![net.failed(e); vars.len()],
    }
}

#[track_caller]
fn repeat(
    net: &Builder,
    vars: &[Expr],
    mut condition: impl FnMut(&[Expr]) -> Expr,
    mut body: impl FnMut(&[Expr]) -> Vec<Expr>,
) -> Result<Vec<Expr>> {
    let asked = asked(net);
    let mut holds = |vars: &[Expr]| {
        let holds = condition(vars);
        decides(&holds, &asked)?;
        Ok(holds)
    };
    let mut step = |vars: &[Expr]| {
        let next = body(vars);
        if next.len() != vars.len() {
            let text =
                format!("the body of a loop over {} variables returns {} values", vars.len(), next.len());
            return Err(Error::new(ErrorKind::Slot, text));
        }
        for (var, next) in vars.iter().zip(&next) {
            let rank = |x: &Expr| x.dims().len();
            next.check()?;
            let may_change = net.is_eager() && var.dtype() == next.dtype() && rank(var) == rank(next);
            if !may_change {
                same(
                    "the body of a loop changes dtype or shape of a variable",
                    ("before it", "after it"),
                    var,
                    next,
                )?;
            }
        }
        Ok(next)
    };
    let transaction = net.transaction();
    let mut vars: Vec<Expr> = vars.iter().map(nameless).collect();
    vars.iter().try_for_each(|var| var.check().map(drop))?;
    if net.is_eager() {
        while is_true(&holds(&vars)?)? {
            vars = step(&vars).map_err(&asked)?;
        }
        return Ok(vars);
    }
    let condition = copy(&holds(&vars)?);
    let (sub_block, mut changed) = net.sub_block(|| {
        let next = step(&vars)?;
        let again = holds(&next)?;
        // A next value that is itself another loop variable must be copied before that one is overwritten.
        let taken = |next: &Expr| vars.iter().any(|var| var.is(next));
        let changes = vars.iter().zip(&next).filter(|(var, next)| !var.is(next));
        let changes: Vec<_> =
            changes.map(|(var, next)| (var, if taken(next) { copy(next) } else { next.clone() })).collect();
        let mut changed = vec![];
        for (var, next) in changes.iter().map(|(var, next)| (*var, next)).chain([(&condition, &again)]) {
            emit(Assign { x: next.into(), out: var.into() }).out.check()?;
            changed.push(var.clone());
        }
        Ok(changed)
    })?;
    let others = overwritten(net, sub_block, &changed)?;
    let mut x: Vec<Expr> = vars.clone();
    let read = net.program()?.captures(sub_block);
    for var in read.into_iter().chain(others.iter().map(Expr::var)) {
        if x.iter().all(|x| x.var() != var) {
            x.push(expr(net, var));
        }
    }
    changed.extend(others);
    let op = emit(While {
        x: x.iter().map(Into::into).collect(),
        condition: (&condition).into(),
        out: changed.iter().map(Into::into).collect(),
        step_scopes: scopes(net).into(),
        checkpoint_every: 0,
        sub_block,
    });
    op.step_scopes.check()?;
    transaction.commit();
    Ok(vars)
}

/// Returns an error for an invalid condition, with the place of the request; in a program, a failed condition reports
/// itself.
pub(super) fn decides(condition: &Expr, asked: impl Fn(Error) -> Error) -> Result<()> {
    if !condition.builder().is_eager() {
        condition.check()?;
    }
    is_boolean(condition).map_err(asked)
}

fn is_boolean(condition: &Expr) -> Result<()> {
    let meta = condition.check()?.meta();
    if meta.dtype == DType::Bool && meta.dims.numel().get().is_none_or(|n| n == 1) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::DType, format!("the condition {condition} is not a bool of one element")))
}

/// The value of a condition in eager mode.
pub(super) fn is_true(condition: &Expr) -> Result<bool> {
    Ok(condition.item()? != 0.0)
}
