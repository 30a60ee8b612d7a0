//! Conditionals: `cond`, `case` and `switch_case`.

use autobwd::{Builder, DType, Error, ErrorKind, Expr, New, Result, Var, VarDesc, emit};

use super::{
    ConditionalBlock,
    while_loop::{asked, decides, expr, is_true, overwritten, same, scopes},
};
use crate::{Math, select::SelectInput, shape::Assign};

/// The body of one branch.
pub type Branch<'a> = Box<dyn FnOnce() -> Vec<Expr> + 'a>;

/// Returns the values of `if_true` if `condition` holds, else those of `if_false`, which have the same dtypes and
/// shapes. Only the selected branch runs and overwrites variables of the surrounding block. In eager mode, the other
/// branch is not even called.
///
/// All returned expressions fail, at least one, if the condition is not one bool or if a branch fails, returns
/// different values or overwrites a parameter. In eager mode, a condition that fails calls neither branch and returns
/// one failed expression.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, control::cond};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[]);
/// let zero = &x * 0.0;
/// let root = cond(&zero.less_than(&x), || vec![x.sqrt()], || vec![&x * 0.5]);
/// let mut of = |x: f32| -> autobwd::Result<f64> {
///     let x = Tensor::scalar(x)?;
///     Executor::new().run(&net.program()?, &mut Scope::new(), &[("x", &x)], &[&root[0].name()])?[0].item()
/// };
/// assert_eq!((of(9.0)?, of(-9.0)?), (3.0, -4.5));
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn cond(
    condition: &Expr,
    if_true: impl FnOnce() -> Vec<Expr>,
    if_false: impl FnOnce() -> Vec<Expr>,
) -> Vec<Expr> {
    let net = condition.builder();
    let decided = decides(condition, asked(net));
    if net.is_eager() {
        return match decided.and_then(|()| is_true(condition)) {
            Ok(true) => if_true(),
            Ok(false) => if_false(),
            Err(e) => vec![net.failed(e)],
        };
    }
    // Branches are built in any case: their length is the number of failed expressions.
    let mut count = 0;
    let chosen = match decided {
        Ok(()) => choose(condition, if_true, if_false, &mut count),
        Err(e) => {
            let failed = net.failed(e).check().map(|_| vec![]);
            let _transaction = net.transaction();
            count = length(net, if_true).max(length(net, if_false));
            failed
        }
    };
    match chosen {
        Ok(chosen) => chosen,
        Err(e) => vec![net.failed(e); count.max(1)],
    }
}

/// The number of values that a branch returns; the branch itself is discarded.
#[track_caller]
fn length(net: &Builder, body: impl FnOnce() -> Vec<Expr>) -> usize {
    let mut length = 0;
    // The builder remembers the failure.
    let _ = net.sub_block(|| {
        length = body().len();
        Ok(())
    });
    length
}

/// Appends both branches; `count` becomes the number of values they return, also on failure.
#[track_caller]
fn choose(
    condition: &Expr,
    if_true: impl FnOnce() -> Vec<Expr>,
    if_false: impl FnOnce() -> Vec<Expr>,
    count: &mut usize,
) -> Result<Vec<Expr>> {
    let asked = asked(condition.builder());
    let transaction = condition.builder().transaction();
    // Branches may overwrite the condition.
    let (otherwise, mask) = (condition.logical_not(), condition.cast(DType::I32));
    let yes = branch(condition, if_true, count);
    let no = branch(&otherwise, if_false, count);
    let (yes, no) = (yes?, no?);
    if yes.len() != no.len() {
        let text = format!("the branches return different numbers of values: {} and {}", yes.len(), no.len());
        return Err(asked(Error::new(ErrorKind::Slot, text)));
    }
    let mut chosen = vec![];
    for (yes, no) in yes.iter().zip(&no) {
        same(
            "the branches return different results",
            ("a result of the true branch", "the same result of the false branch"),
            yes,
            no,
        )
        .map_err(&asked)?;
        let x = vec![Some(no.into()), Some(yes.into())];
        let op = emit(SelectInput { x, mask: (&mask).into(), out: New });
        op.out.check()?;
        chosen.push(op.out);
    }
    transaction.commit();
    Ok(chosen)
}

/// Runs a block if a condition holds; otherwise its outputs are zeros.
#[track_caller]
fn branch(condition: &Expr, body: impl FnOnce() -> Vec<Expr>, count: &mut usize) -> Result<Vec<Expr>> {
    let net = condition.builder();
    let around = net.block();
    let (sub_block, out) = net.sub_block(|| {
        let values = body();
        *count = values.len().max(*count);
        let mut out = vec![];
        for value in values {
            let meta = value.check()?.meta();
            let desc = VarDesc::new(meta.dtype, meta.dims);
            let desc = VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc };
            let place = net.variable(around, "cond", desc);
            emit(Assign { x: (&value).into(), out: (&place).into() }).out.check()?;
            out.push(place);
        }
        Ok(out)
    })?;
    let others = overwritten(net, sub_block, &out)?;
    let mut read = net.program()?.captures(sub_block);
    let unread: Vec<Var> = others.iter().map(Expr::var).filter(|v| !read.contains(v)).collect();
    read.extend(unread);
    let input: Vec<Expr> = read.into_iter().map(|v| expr(net, v)).collect();
    let op = emit(ConditionalBlock {
        cond: condition.into(),
        input: input.iter().map(Into::into).collect(),
        out: out.iter().chain(&others).map(Into::into).collect(),
        scope: scopes(net).into(),
        is_scalar_condition: true,
        sub_block,
    });
    op.scope.check()?;
    Ok(out)
}

/// Returns the values of the first branch whose condition holds, else those of `default`; fails as [`cond`] does.
#[track_caller]
pub fn case<'a>(branches: Vec<(Expr, Branch<'a>)>, default: Branch<'a>) -> Vec<Expr> {
    let mut branches = branches.into_iter();
    match branches.next() {
        None => default(),
        Some((condition, branch)) => cond(&condition, branch, || case(branches.collect(), default)),
    }
}

/// Returns the values of the branch with number `index`, else those of `default`; fails as [`cond`] does, and if
/// `index` is not an integer.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Feed, Scope, Tensor};
/// use autobwd_ops::{Math, control::{Branch, switch_case}};
///
/// let net = Builder::new();
/// let (index, x) = (net.input("index", DType::I64, &[1]), net.input("x", DType::F32, &[2]));
/// let branches: Vec<(i64, Branch)> = vec![
///     (3, Box::new(|| vec![x.square()])),
///     (7, Box::new(|| vec![x.exp()])),
/// ];
/// let out = switch_case(&index, branches, Box::new(|| vec![x.clone()]));
/// let (index, x) = (Tensor::from_vec([1], vec![3_i64])?, Tensor::from_vec([2], vec![2.0_f32, 3.0])?);
/// let feeds: &[(&str, &dyn Feed)] = &[("index", &index), ("x", &x)];
/// let fetched = Executor::new().run(&net.program()?, &mut Scope::new(), feeds, &[&out[0].name()])?;
/// assert_eq!(fetched[0].slice::<f32>()?, [4.0, 9.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn switch_case<'a>(index: &Expr, branches: Vec<(i64, Branch<'a>)>, default: Branch<'a>) -> Vec<Expr> {
    let net = index.builder();
    let mut failed = index.check().is_err().then(|| index.clone());
    if failed.is_none() && !matches!(index.dtype(), DType::U8 | DType::I32 | DType::I64) {
        let error = Error::new(ErrorKind::DType, format!("the index {index} is not an integer"));
        failed = Some(net.failed(asked(net)(error)));
    }
    let mut conditions = vec![];
    for (number, branch) in branches {
        let number = crate::fill::FillConstant {
            shape: index.dims().iter().map(|dim| dim.wire()).collect(),
            dtype: index.dtype(),
            value: number as f32,
            str_value: number.to_string(),
            ..crate::fill::FillConstant::of(New)
        };
        let condition = match &failed {
            Some(failed) => failed.clone(),
            None => index.equal(&net.emit(number).out),
        };
        conditions.push((condition, branch));
    }
    match failed {
        Some(failed) if conditions.is_empty() => cond(&failed, default, Vec::new),
        _ => case(conditions, default),
    }
}
