//! Expressions that fail before an operator is emitted.

use autobwd::{Error, ErrorKind, Expr};

/// An expression that failed because of one of these, or else because of `text`.
#[track_caller]
pub(crate) fn failed(inputs: &[&Expr], text: String) -> Expr {
    let first = inputs.iter().find_map(|x| x.check().err());
    inputs[0].builder().failed(first.unwrap_or_else(|| Error::new(ErrorKind::Shape, text)))
}

/// The failure of a loss of predictions and targets whose shapes differ; losses broadcast nothing.
#[track_caller]
pub(crate) fn unequal_shapes(loss: &str, x: &Expr, y: &Expr) -> Option<Expr> {
    let (dims, targets) = (x.dims(), y.dims());
    if dims.agrees(&targets) && x.check().is_ok() && y.check().is_ok() {
        return None;
    }
    let is_same_but_for_ones = dims.iter().filter(|n| **n != 1).eq(targets.iter().filter(|n| **n != 1));
    let open = dims.iter().filter(|n| n.get().is_none()).count();
    let hint = match is_same_but_for_ones && open < 2 {
        true => format!("; reshape them by `.reshape(&{dims})`"),
        false => String::new(),
    };
    let text = format!(
        "`{loss}` needs targets of the shape {dims} of the predictions, not {targets}: a loss does not broadcast{hint}"
    );
    Some(failed(&[x, y], text))
}
