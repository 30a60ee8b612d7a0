//! `scan`: recurrences as functions from states to states.

use autobwd::{Builder, Error, ErrorKind, Expr};

use super::static_rnn;

/// Runs `step` for every step of sequences whose first dimension is time. `step` receives the sequences' steps and the
/// states, `states` at first, and returns the next states and the outputs of the step. Outputs are stacked into
/// sequences.
///
/// Gradients flow back through time, also into variables of the surrounding block that the step reads. In eager mode,
/// `step` is called for every step.
///
/// All outputs fail for a sequence without a first dimension, and if a step fails or returns states unlike the ones it
/// receives. Without sequences, one failed expression is returned.
///
/// ```
/// use autobwd::{Builder, DType, Executor, Feed, Scope, Tensor};
/// use autobwd_ops::{Math, control::scan};
///
/// // Running sums.
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 2]);
/// let zeros = net.input("zeros", DType::F32, &[2]);
/// let sums = scan(&[x], &[zeros], false, |x, sum| {
///     let sum = &x[0] + &sum[0];
///     (vec![sum.clone()], vec![sum])
/// });
/// let x = Tensor::from_vec([3, 2], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0])?;
/// let zeros = Tensor::zeros(DType::F32, &[2])?;
/// let feeds: &[(&str, &dyn Feed)] = &[("x", &x), ("zeros", &zeros)];
/// let fetched = Executor::new().run(&net.program()?, &mut Scope::new(), feeds, &[&sums[0].name()])?;
/// assert_eq!(fetched[0].slice::<f32>()?, [1.0, 2.0, 4.0, 6.0, 9.0, 12.0]);
/// # Ok::<(), autobwd::Error>(())
/// ```
#[track_caller]
pub fn scan(
    sequences: &[Expr],
    states: &[Expr],
    reverse: bool,
    step: impl FnMut(&[Expr], &[Expr]) -> (Vec<Expr>, Vec<Expr>),
) -> Vec<Expr> {
    recurrence(sequences, states, reverse, false, step)
}

/// The same, and the states after the last step.
#[track_caller]
pub(crate) fn scan_to_last(
    sequences: &[Expr],
    states: &[Expr],
    reverse: bool,
    step: impl FnMut(&[Expr], &[Expr]) -> (Vec<Expr>, Vec<Expr>),
) -> (Vec<Expr>, Vec<Expr>) {
    let mut outputs = recurrence(sequences, states, reverse, true, step);
    let lasts = outputs.split_off(outputs.len().saturating_sub(states.len()));
    (outputs, lasts)
}

/// The outputs of all steps, then, if wanted, the states after the last step.
#[track_caller]
fn recurrence(
    sequences: &[Expr],
    states: &[Expr],
    reverse: bool,
    returns_last: bool,
    mut step: impl FnMut(&[Expr], &[Expr]) -> (Vec<Expr>, Vec<Expr>),
) -> Vec<Expr> {
    let Some(net) = sequences.first().map(|x| x.builder().clone()) else {
        let net = states.first().map_or_else(Builder::new, |state| state.builder().clone());
        return vec![net.failed(Error::new(ErrorKind::Slot, "a recurrence needs at least one sequence"))];
    };
    static_rnn(&net, reverse, |rnn| {
        let inputs: Vec<Expr> = sequences.iter().map(|x| rnn.step_input(x)).collect();
        let before: Vec<Expr> = states.iter().map(|state| rnn.memory(state)).collect();
        let (after, outputs) = step(&inputs, &before);
        if after.len() != before.len() {
            let text = format!("a step with {} states returns {} values", before.len(), after.len());
            rnn.fail(Error::new(ErrorKind::Slot, text));
        }
        for (before, after) in before.iter().zip(&after) {
            rnn.update_memory(before, after);
            if returns_last {
                rnn.last_output(before);
            }
        }
        outputs.iter().for_each(|output| rnn.step_output(output));
    })
}
