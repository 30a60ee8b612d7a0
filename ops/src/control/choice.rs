//! Choices between branches.

use autobwd::{DType, Error, ErrorKind, Expr, New, Result, Var, VarDesc, emit};

use super::{
    ConditionalBlock,
    loops::{asked, expr, is_boolean, is_true, overwritten, same, scopes},
};
use crate::{Math, select::SelectInput, shape::Assign};

/// What one branch of a choice says.
pub type Branch<'a> = Box<dyn FnOnce() -> Result<Vec<Expr>> + 'a>;

/// What `if_true` returns if `condition` holds, else what `if_false` does: of the same dtypes and shapes. Only the one that
/// is chosen runs, and overwrites variables around it. Of what is computed at once, the other one is not even called.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Scope, Tensor};
/// use autobwd_ops::{Math, control::cond};
///
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[])?;
/// let zero = (&x * 0.0)?;
/// let root = cond(&zero.less_than(&x)?, || Ok(vec![x.sqrt()?]), || Ok(vec![(&x * 0.5)?]))?;
/// let mut of = |x: f32| -> autobwd::Result<f64> {
///     let x = Tensor::scalar(x)?;
///     Executor::new().run(&net.program(), &mut Scope::new(), &[("x", &x)], &[&root[0].name()])?[0].item()
/// };
/// assert_eq!((of(9.0)?, of(-9.0)?), (3.0, -4.5));
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// A condition that is not one boolean; branches that return different things, or overwrite a parameter.
#[track_caller]
pub fn cond(
    condition: &Expr,
    if_true: impl FnOnce() -> Result<Vec<Expr>>,
    if_false: impl FnOnce() -> Result<Vec<Expr>>,
) -> Result<Vec<Expr>> {
    let asked = asked(condition.builder());
    is_boolean(condition).map_err(&asked)?;
    if condition.builder().is_eager() {
        return if is_true(condition)? { if_true() } else { if_false() };
    }
    let transaction = condition.builder().transaction();
    // Branches may overwrite the condition.
    let (otherwise, mask) = (condition.logical_not()?, condition.cast(DType::I32)?);
    let yes = branch(condition, if_true)?;
    let no = branch(&otherwise, if_false)?;
    if yes.len() != no.len() {
        let text = format!("the branches return different things: {} values and {}", yes.len(), no.len());
        return Err(asked(Error::new(ErrorKind::Slot, text)));
    }
    let mut chosen = vec![];
    for (yes, no) in yes.iter().zip(&no) {
        same("the branches return different things", ("if the condition holds, one", "else it"), yes, no)
            .map_err(&asked)?;
        let x = vec![Some(no.into()), Some(yes.into())];
        chosen.push(emit(SelectInput { x, mask: (&mask).into(), out: New })?.out);
    }
    transaction.commit();
    Ok(chosen)
}

/// Runs a block if a condition holds; otherwise what it returns are zeros.
#[track_caller]
fn branch(condition: &Expr, body: impl FnOnce() -> Result<Vec<Expr>>) -> Result<Vec<Expr>> {
    let net = condition.builder();
    let around = net.block();
    let (sub_block, out) = net.sub_block(|| {
        let mut out = vec![];
        for value in body()? {
            let meta = value.meta();
            let desc = VarDesc::new(meta.dtype, meta.dims);
            let desc = VarDesc { stop_gradient: !desc.dtype.is_float(), ..desc };
            let place = net.variable(around, "cond", desc);
            emit(Assign { x: (&value).into(), out: (&place).into() })?;
            out.push(place);
        }
        Ok(out)
    })?;
    let others = overwritten(net, sub_block, &out);
    let mut read = net.program().outside(sub_block);
    let unread: Vec<Var> = others.iter().map(Expr::var).filter(|v| !read.contains(v)).collect();
    read.extend(unread);
    let input: Vec<Expr> = read.into_iter().map(|v| expr(net, v)).collect();
    emit(ConditionalBlock {
        cond: condition.into(),
        input: input.iter().map(Into::into).collect(),
        out: out.iter().chain(&others).map(Into::into).collect(),
        scope: scopes(net).into(),
        is_scalar_condition: true,
        sub_block,
    })?;
    Ok(out)
}

/// What the first branch returns whose condition holds, else what `default` does.
///
/// # Errors
/// Those of [`cond`].
#[track_caller]
pub fn case<'a>(branches: Vec<(Expr, Branch<'a>)>, default: Branch<'a>) -> Result<Vec<Expr>> {
    let mut branches = branches.into_iter();
    match branches.next() {
        None => default(),
        Some((condition, branch)) => cond(&condition, branch, || case(branches.collect(), default)),
    }
}

/// What the branch of number `index` returns, else what `default` does.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Feed, Scope, Tensor};
/// use autobwd_ops::{Math, control::{Branch, switch_case}};
///
/// let net = Builder::new();
/// let (index, x) = (net.input("index", DType::I64, &[1])?, net.input("x", DType::F32, &[2])?);
/// let branches: Vec<(i64, Branch)> = vec![
///     (3, Box::new(|| Ok(vec![x.square()?]))),
///     (7, Box::new(|| Ok(vec![x.exp()?]))),
/// ];
/// let out = switch_case(&index, branches, Box::new(|| Ok(vec![x.clone()])))?;
/// let (index, x) = (Tensor::from_vec([1], vec![3_i64])?, Tensor::from_vec([2], vec![2.0_f32, 3.0])?);
/// let feeds: &[(&str, &dyn Feed)] = &[("index", &index), ("x", &x)];
/// let fetched = Executor::new().run(&net.program(), &mut Scope::new(), feeds, &[&out[0].name()])?;
/// assert_eq!(fetched[0].slice::<f32>()?, [4.0, 9.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
///
/// # Errors
/// Those of [`cond`]; an index that is no whole number.
#[track_caller]
pub fn switch_case<'a>(
    index: &Expr,
    branches: Vec<(i64, Branch<'a>)>,
    default: Branch<'a>,
) -> Result<Vec<Expr>> {
    if !matches!(index.dtype(), DType::U8 | DType::I32 | DType::I64) {
        let error = Error::new(ErrorKind::DType, format!("the index {index} is no whole number"));
        return Err(asked(index.builder())(error));
    }
    let mut conditions = vec![];
    for (number, branch) in branches {
        let number = crate::fill::FillConstant {
            out: New,
            shape: index.dims().iter().map(|dim| dim.wire()).collect(),
            dtype: index.dtype(),
            value: number as f32,
            str_value: number.to_string(),
        };
        conditions.push((index.equal(&index.builder().emit(number)?.out)?, branch));
    }
    case(conditions, default)
}
