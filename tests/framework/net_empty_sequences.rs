//! Sequences without steps.

use autobwd::{
    Executor, Result, Tensor,
    net::{NetOp, Operator, RnnOp, backward},
};

use crate::support::nets::{scope, tanh, times};

/// `h[t] = tanh(x[t] · w) · h[t - 1]`.
fn recurrent(name: &str, boot: &str) -> Result<RnnOp> {
    let step = NetOp::new("step", [times("x", "w", "p"), tanh("p", "q"), times("q", "before", "h")])?;
    RnnOp::new(name, step)?.step_input("xs", "x")?.memory(boot, "before", "h")?.step_output("h", "hs")
}

#[test]
fn no_steps_make_sequences_of_nothing_and_gradients_of_zero() -> Result<()> {
    let tree = Operator::from(recurrent("rnn", "boot")?);
    let gradient = backward(&tree, &[])?;
    let mut executor = Executor::with_threads(1);
    for steps in [0, 2, 0] {
        let mut scope = scope(&[("boot", &[0.5, -1.0]), ("w", &[2.0, 3.0])]);
        scope.set("xs", Tensor::from_vec([steps, 2], vec![0.25; steps * 2])?);
        scope.set("hs@GRAD", Tensor::from_vec([steps, 2], vec![1.0; steps * 2])?);
        tree.run(&mut executor, &mut scope)?;
        assert_eq!(scope.get("hs")?.dims(), [steps, 2]);
        gradient.run(&mut executor, &mut scope)?;
        assert_eq!(scope.get("xs@GRAD")?.dims(), [steps, 2]);
        for name in ["boot@GRAD", "w@GRAD"] {
            let found = scope.get(name)?.to_f64s();
            assert_eq!((found.len(), found.iter().all(|x| *x == 0.0)), (2, steps == 0), "{name}: {found:?}");
        }
    }
    Ok(())
}

#[test]
fn steps_within_steps_may_be_none() -> Result<()> {
    let inner = Operator::from(recurrent("inner", "start")?);
    let step = NetOp::new("sweep", [inner, tanh("start", "next")])?;
    let sweeps = RnnOp::new("sweeps", step)?.step_input("xss", "xs")?.memory("first", "start", "next")?;
    let tree = Operator::from(sweeps.step_output("hs", "hss")?);
    let gradient = backward(&tree, &[])?;
    let mut executor = Executor::with_threads(1);
    for dims in [[2, 0, 1], [0, 4, 1], [0, 0, 1], [2, 3, 1]] {
        let numel = dims.iter().product();
        let mut scope = scope(&[("first", &[0.5]), ("w", &[2.0])]);
        scope.set("xss", Tensor::from_vec(dims, vec![0.25; numel])?);
        scope.set("hss@GRAD", Tensor::from_vec(dims, vec![1.0; numel])?);
        tree.run(&mut executor, &mut scope)?;
        assert_eq!(scope.get("hss")?.dims(), dims);
        gradient.run(&mut executor, &mut scope)?;
        assert_eq!((scope.get("xss@GRAD")?.dims(), scope.get("w@GRAD")?.dims()), (&dims[..], &[1][..]));
        assert_eq!(scope.get("w@GRAD")?.item()? == 0.0, numel == 0);
    }
    Ok(())
}
