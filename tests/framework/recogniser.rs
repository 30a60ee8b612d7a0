//! Connectionist temporal classification: PyTorch's losses and gradients, and a recogniser that learns to spell.

use autobwd::{Builder, DType, Executor, Result, Scope, Tensor};
use autobwd_ops::{
    Init, Math,
    optim::{Adam, Optimizer},
};

use crate::support::derivatives::assert_near;

const BLANK: usize = 0;
/// What the sounds of a label are, a class each.
const LABELS: [[i64; 3]; 2] = [[1, 1, 3], [2, 3, 0]];
const LENGTHS: [i64; 2] = [3, 2];

fn integers<const N: usize>(dims: [usize; N], numbers: Vec<i64>) -> Result<Tensor> {
    Tensor::from_vec(dims, numbers)
}

#[test]
fn losses_and_gradients_are_those_of_pytorch() -> Result<()> {
    let (steps, batch, classes) = (6, 2, 4);
    let logit = |i: usize| {
        let (t, b, c) = (i / (batch * classes), i / classes % batch, i % classes);
        ((t * 7 + b * 5 + c * 3) % 11) as f64 / 4.0 - 1.0
    };
    let logits = (0..steps * batch * classes).map(logit).collect::<Vec<_>>();
    let tape = autobwd::eager();
    let x = tape.leaf("x", Tensor::from_vec([steps, batch, classes], logits)?);
    let labels = tape.constant(integers([2, 3], LABELS.concat())?);
    let lengths = [vec![6, 4], LENGTHS.to_vec()].map(|numbers| integers([2], numbers));
    let [steps, counts] = lengths.map(|lengths| lengths.map(|lengths| tape.constant(lengths)));
    let losses = x.ctc_loss(&labels, [&steps?, &counts?]);
    // torch 2.15: `ctc_loss(x.log_softmax(2), labels, [6, 4], [3, 2], reduction="none")`.
    assert_near(&losses.tensor()?.to_f64s(), &[6.632386812805363, 4.259591190328851], 1e-12);
    losses.sum(&[]).backward()?;
    let gradient = x.gradient()?.tensor()?.to_f64s();
    let first = [
        -0.184553688034,
        -0.63302078816,
        0.262295306973,
        0.55527916922,
        -0.24953356634,
        0.527925508582,
        -0.429645132835,
        0.151253190594,
    ];
    let fourth = [
        -0.294834171659,
        -0.036829225166,
        0.141248732905,
        0.19041466392,
        -0.377034278631,
        0.258006498543,
        0.546199761702,
        -0.427171981613,
    ];
    assert_near(&gradient[..8], &first, 1e-11);
    assert_near(&gradient[24..32], &fourth, 1e-11);
    // The second row has four steps.
    assert_eq!(gradient[44..], [0.0; 4]);
    Ok(())
}

/// The label that the best class of each step spells.
fn spelled(best: impl Iterator<Item = usize>) -> Vec<i64> {
    let (mut label, mut before) = (vec![], BLANK);
    for class in best {
        if class != BLANK && class != before {
            label.push(class as i64);
        }
        before = class;
    }
    label
}

#[test]
fn a_recogniser_learns_to_spell() -> Result<()> {
    let (steps, batch, features) = (9, 2, 5);
    let net = Builder::new();
    let sounds = net.input("sounds", DType::F32, &[-1, batch as i64, features as i64]);
    let labels = net.input("labels", DType::I64, &[batch as i64, -1]);
    let [steps_of_row, counts] = ["steps", "counts"].map(|name| net.input(name, DType::I64, &[batch as i64]));
    let weight = net.parameter("weight", DType::F32, &[features, 4], |w| Init::XavierUniform.emit(w, 7));
    let logits = sounds.matmul(&weight);
    let loss = logits.ctc_loss(&labels, [&steps_of_row, &counts]).mean();
    Adam::new(0.1).minimize(&loss)?.complete()?;

    // Each class has a sound of its own, silence between sounds is the last one.
    let sound = |class: usize| (0..features).map(move |i| if i == class { 1.0 } else { 0.1 });
    let spoken = [[1, 4, 1, 1, 4, 3, 3, 4, 4], [4, 2, 2, 2, 3, 4, 4, 4, 4]];
    let order = (0..steps).flat_map(|t| spoken.iter().map(move |row| row[t]));
    let sounds = Tensor::from_vec([steps, batch, features], order.flat_map(sound).collect::<Vec<f32>>())?;
    let labels = integers([2, 3], LABELS.concat())?;
    let (steps_of_row, counts) = (integers([2], vec![9, 7])?, integers([2], LENGTHS.to_vec())?);
    let feeds: [(&str, &dyn autobwd::Feed); 4] =
        [("sounds", &sounds), ("labels", &labels), ("steps", &steps_of_row), ("counts", &counts)];

    let (mut executor, mut scope) = (Executor::with_threads(1), Scope::new());
    executor.run(&net.startup().program()?, &mut scope, &[], &[])?;
    let (program, fetches) = (net.program()?, [loss.name(), logits.name()]);
    let mut last = vec![];
    for _ in 0..80 {
        last = executor.run(&program, &mut scope, &feeds, &fetches.each_ref().map(String::as_str))?;
    }
    assert!(last[0].item()? < 0.1, "{}", last[0].item()?);
    let logits = last[1].slice::<f32>()?;
    for row in 0..batch {
        let best = (0..steps).map(|t| {
            let logits = &logits[(t * batch + row) * 4..][..4];
            (0..4).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap_or(BLANK)
        });
        assert_eq!(spelled(best), LABELS[row][..LENGTHS[row] as usize]);
    }
    Ok(())
}
