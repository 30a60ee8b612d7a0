//! Why variables of nets have no gradient.

use autobwd::{
    ErrorKind, Result,
    net::{NetOp, Operator, RnnOp, backward, missing},
};
use autobwd_ops::fill::FillZerosLike;

use crate::support::nets::{net, refused, tanh, times};

/// `y = tanh(x) * w`, and `zeros(dead)` added to a value that `y` does not read.
fn tree() -> Operator {
    let zeros = Operator::of(FillZerosLike { x: "dead", out: "zero" });
    net(
        "net",
        [
            tanh("x", "h"),
            zeros,
            net("inner", [times("h", "w", "p"), times("p", "zero", "y")]),
            tanh("free", "z"),
        ],
    )
}

fn why(tree: &Operator, no_grad: &[&str], name: &str) -> Result<String> {
    let why = missing(tree, no_grad, name)?.unwrap_or_default();
    // Ignore source lines.
    Ok(match why.split_once(" (") {
        Some((before, after)) => format!("{before}{}", after.split_once(')').unwrap_or_default().1),
        None => why,
    })
}

#[test]
fn every_reason_is_reported() -> Result<()> {
    let tree = tree();
    for name in ["x", "w", "h", "free", "y"] {
        assert_eq!(missing(&tree, &[], name)?, None, "{name}");
    }
    assert_eq!(
        why(&tree, &[], "dead")?,
        "`dead` has no gradient: its path to `y` and `z` ends at operator 1 `fill_zeros_like`, which passes no gradient on \
         to X = `dead`"
    );
    assert_eq!(why(&tree, &["x"], "x")?, "`x` has no gradient: it is in the no-grad set");
    assert_eq!(
        why(&tree, &["h"], "x")?,
        "`x` has no gradient: its path to `y` and `z` ends at `h`, which is in the no-grad set; operator 0 `tanh` writes it"
    );
    let part = NetOp::new("net", [tanh("x", "y"), tanh("w", "z")])?.returning(["y"])?;
    assert_eq!(why(&part.into(), &[], "w")?, "`w` has no gradient: no path leads from it to `y`");
    Ok(())
}

#[test]
fn steps_over_time_are_one_operator() -> Result<()> {
    let zeros = Operator::of(FillZerosLike { x: "dead", out: "zero" });
    let step = NetOp::new(
        "step",
        [times("x", "w", "p"), zeros, times("p", "zero", "q"), times("q", "before", "h")],
    )?;
    let rnn = RnnOp::new("rnn", step)?
        .step_input("xs", "x")?
        .memory("boot", "before", "h")?
        .step_output("h", "hs")?;
    let tree = Operator::from(rnn);
    for name in ["xs", "w", "boot"] {
        assert_eq!(missing(&tree, &[], name)?, None, "{name}");
    }
    assert_eq!(
        why(&tree, &[], "dead")?,
        "`dead` has no gradient: its path to `hs` ends at operator 0 `rnn`, which passes no gradient on to shared = `dead`"
    );
    Ok(())
}

#[test]
fn reported_reasons_match_missing_gradients() -> Result<()> {
    let tree = tree();
    for no_grad in [&[][..], &["x"], &["h", "w"], &["p"]] {
        let gradient = backward(&tree, no_grad)?;
        for name in tree.inputs() {
            let grad = format!("{name}@GRAD");
            let computed = gradient.outputs().contains(&&*grad);
            assert_eq!(missing(&tree, no_grad, name)?.is_none(), computed, "{name} without {no_grad:?}");
        }
    }
    Ok(())
}

#[test]
fn unknown_names_are_refused() {
    let tree = tree();
    refused(missing(&tree, &[], "ww"), ErrorKind::UnknownVar, &["no variable `ww`; did you mean `w`"]);
    refused(missing(&tree, &["ww"], "w"), ErrorKind::UnknownVar, &["no variable `ww`; did you mean `w`"]);
}
