//! Recurrent layers compared with loops in plain Rust: values, gradients, errors.

use autobwd::{Builder, DType, Executor, Expr, Feed, Result, Tensor, gradients, tape, tensor::Bool};
use autobwd_ops::{
    Init, Math,
    nn::{Gru, GruCell, LstmCell, Recurrence, RecurrentCell, RnnCell},
};

use crate::support::{
    derivatives::{assert_derivative, assert_near},
    networks::Net,
};

const STEPS: usize = 4;
const BATCH: usize = 3;
const INPUTS: usize = 2;
const UNITS: usize = 3;
/// Steps of each sequence.
const LENGTHS: [usize; BATCH] = [2, 4, 0];

/// One step of a unit, from its gates of the input and of the previous output, and its previous states.
type Unit = fn(&[f64], &[f64], &[f64]) -> Vec<f64>;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn rnn(x: &[f64], h: &[f64], _: &[f64]) -> Vec<f64> {
    vec![(x[0] + h[0]).tanh()]
}

fn gru(x: &[f64], h: &[f64], before: &[f64]) -> Vec<f64> {
    let (r, z) = (sigmoid(x[0] + h[0]), sigmoid(x[1] + h[1]));
    let n = (x[2] + r * h[2]).tanh();
    vec![(1.0 - z) * n + z * before[0]]
}

fn lstm(x: &[f64], h: &[f64], before: &[f64]) -> Vec<f64> {
    let gate = |i: usize| x[i] + h[i];
    let c = sigmoid(gate(1)) * before[1] + sigmoid(gate(0)) * gate(2).tanh();
    vec![sigmoid(gate(3)) * c.tanh(), c]
}

/// Element `i` of a vector times a matrix of so many columns.
fn product(x: &[f64], matrix: &[f64], columns: usize, i: usize) -> f64 {
    x.iter().enumerate().map(|(row, x)| x * matrix[row * columns + i]).sum()
}

/// Runs over sequences, `[steps][batch][inputs]`, from the states `[state][batch][unit]`, which it updates. Returns the
/// outputs.
fn by_hand(
    unit: Unit,
    x: &[Vec<Vec<f64>>],
    [wx, wh, b]: [&[f64]; 3],
    states: &mut [Vec<Vec<f64>>],
    masked: bool,
    reverse: bool,
) -> Vec<Vec<Vec<f64>>> {
    let mut outputs = vec![vec![vec![0.0; UNITS]; BATCH]; STEPS];
    let columns = b.len();
    for t in 0..STEPS {
        let t = if reverse { STEPS - 1 - t } else { t };
        for row in (0..BATCH).filter(|row| !masked || t < LENGTHS[*row]) {
            let before: Vec<Vec<f64>> = states.iter().map(|state| state[row].clone()).collect();
            for j in 0..UNITS {
                let gates = || (j..columns).step_by(UNITS);
                let of_input: Vec<_> = gates().map(|i| product(&x[t][row], wx, columns, i) + b[i]).collect();
                let of_state: Vec<_> = gates().map(|i| product(&before[0], wh, columns, i)).collect();
                let before: Vec<_> = before.iter().map(|state| state[j]).collect();
                for (state, after) in states.iter_mut().zip(unit(&of_input, &of_state, &before)) {
                    state[row][j] = after;
                }
            }
            outputs[t][row].clone_from(&states[0][row]);
        }
    }
    outputs
}

/// Two bidirectional layers, and the values to compare them with.
struct Case {
    net: Net,
    states: Vec<Expr>,
    layers: Vec<Expr>,
    out: Expr,
    last: Vec<Expr>,
}

fn case<C: RecurrentCell>(masked: bool, given: bool) -> Result<Case> {
    let mut net = Net::new();
    let data = |net: &Net, name: &str, dims: &[usize], seed| {
        net.net.parameter(name, DType::F64, dims, |x| Init::Uniform(-1.0, 1.0).emit(x, seed))
    };
    let x = data(&net, "x", &[STEPS, BATCH, INPUTS], 100);
    let lengths = LENGTHS.map(|length| length as f64).to_vec();
    net.scope.set("lengths", Tensor::from_vec([1, BATCH], lengths)?);
    let lengths = net.net.persistable("lengths", DType::F64, &[1, BATCH], Expr::clone);
    net.scope.set("times", Tensor::from_vec([STEPS, 1], vec![0.0, 1.0, 2.0, 3.0])?);
    let times = net.net.persistable("times", DType::F64, &[STEPS, 1], Expr::clone);
    let mask = masked.then(|| times.less_than(&lengths));
    let count = if given { 4 * C::STATES } else { 0 };
    let states = (0..count).map(|i| data(&net, &format!("h{i}"), &[BATCH, UNITS], i as i32));
    let states = states.collect::<Vec<_>>();
    let layers = Recurrence::<C>::builder(&net.net, INPUTS, UNITS).layers(2).bidirectional();
    let layers = layers.dtype(DType::F64).init(Init::Uniform(-1.0, 1.0)).seed(5).build();
    Executor::new().run(&net.net.startup().program()?, &mut net.scope, &[], &[])?;
    // Biases that are 0 would hide errors.
    for (i, pass) in layers.passes.iter().enumerate() {
        let bias = (0..C::GATES * UNITS).map(|j| ((7 * i + j) as f64).cos()).collect();
        net.scope.set(&pass.bias.name(), Tensor::from_vec([C::GATES * UNITS], bias)?);
    }
    let (out, last) = layers.forward_with(&x, given.then_some(&states), mask.as_ref());
    let layers = layers.passes.into_iter().flat_map(|p| [p.input_weight, p.state_weight, p.bias]).collect();
    Ok(Case { net, states, layers, out, last })
}

impl Case {
    /// Values in the scope.
    fn values(&self, of: &[Expr]) -> Result<Vec<Vec<f64>>> {
        of.iter().map(|e| Ok(self.net.scope.get(&e.name())?.to_f64s())).collect()
    }
}

/// `[outer][middle][inner]`.
fn nested(flat: &[f64], middle: usize, inner: usize) -> Vec<Vec<Vec<f64>>> {
    flat.chunks(middle * inner).map(|rows| rows.chunks(inner).map(<[f64]>::to_vec).collect()).collect()
}

fn check<C: RecurrentCell>(unit: Unit) -> Result<()> {
    for (masked, given) in [(true, true), (true, false), (false, true), (false, false)] {
        let mut case = case::<C>(masked, given)?;
        let weights = case.values(&case.layers)?;
        let first = case.values(&case.states)?.concat();
        let first = if given { first } else { vec![0.0; 4 * C::STATES * BATCH * UNITS] };
        let x = case.net.scope.get("x")?.to_f64s();

        let (mut hidden, mut ends) = (nested(&x, BATCH, INPUTS), vec![]);
        let mut states = nested(&first, BATCH, UNITS);
        for layer in 0..2 {
            let mut sides = vec![];
            for side in 0..2 {
                let pass = 2 * layer + side;
                let [wx, wh, b] = [0, 1, 2].map(|i| &weights[3 * pass + i][..]);
                let states = &mut states[pass * C::STATES..][..C::STATES];
                sides.push(by_hand(unit, &hidden, [wx, wh, b], states, masked, side == 1));
                ends.push(states.concat().concat());
            }
            let beside = |(a, b): (&Vec<f64>, &Vec<f64>)| [&a[..], &b[..]].concat();
            hidden =
                sides[0].iter().zip(&sides[1]).map(|(a, b)| a.iter().zip(b).map(beside).collect()).collect();
        }

        let names: Vec<_> = [&case.out].into_iter().chain(&case.last).map(Expr::name).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        let program = case.net.net.program()?.clone();
        let fetched = Executor::new().run(&program, &mut case.net.scope, &[], &names)?;
        assert_near(&fetched[0].to_f64s(), &hidden.concat().concat(), 1e-12);
        let last: Vec<_> = fetched[1..].iter().map(Tensor::to_f64s).collect();
        assert_near(&last.concat(), &ends.concat(), 1e-12);
    }
    Ok(())
}

fn check_gradients<C: RecurrentCell>() -> Result<()> {
    for (masked, given) in [(true, true), (false, true), (false, false)] {
        let case = case::<C>(masked, given)?;
        // All outputs contribute, each element differently.
        let mut loss = case.out.square().sum(&[]);
        for (i, last) in case.last.iter().enumerate() {
            loss = &loss + (last * (i as f64 + 0.5)).exp().sum(&[]);
        }
        let mut of = vec!["x".to_string()];
        of.extend([2, 4, 6].map(|i| case.layers[i].name()));
        of.extend(case.states.iter().take(C::STATES + 1).map(Expr::name));
        let mut program = case.net.net.program()?.clone();
        let of: Vec<_> = of.iter().map(String::as_str).collect();
        let found = gradients(&mut program, &[&loss.name()], &of, &Default::default())?;

        let mut known = case.layers.clone();
        known.extend(case.states.iter().cloned());
        let mut at: Vec<_> = known.iter().map(Expr::name).zip(case.values(&known)?).collect();
        for name in ["x", "lengths", "times"] {
            at.push((name.into(), case.net.scope.get(name)?.to_f64s()));
        }
        let at: Vec<_> = at.iter().map(|(name, value)| (name.as_str(), &value[..])).collect();
        for (of, grad) in of.iter().zip(found.entries()) {
            let grad = program.name(grad.unwrap()).to_string();
            assert_derivative(&program, &at, &loss.name(), of, &grad);
        }
    }
    Ok(())
}

#[test]
fn recurrent_layers_are_loops() -> Result<()> {
    check::<RnnCell>(rnn)?;
    check::<GruCell>(gru)?;
    check::<LstmCell>(lstm)
}

#[test]
fn gradients_flow_through_recurrent_layers() -> Result<()> {
    check_gradients::<RnnCell>()?;
    check_gradients::<GruCell>()?;
    check_gradients::<LstmCell>()
}

/// The loss of a bidirectional layer, from masked sequences.
fn loss<C: RecurrentCell>(net: &Builder, x: &Expr, mask: &Expr) -> (Expr, Expr) {
    let layer = Recurrence::<C>::builder(net, INPUTS, UNITS).bidirectional().seed(2).build();
    let (out, last) = layer.forward_with(x, None, Some(mask));
    let loss = out.square().mean() + last[0].mean();
    (loss, layer.passes[1].state_weight.clone())
}

fn check_eager<C: RecurrentCell>() -> Result<()> {
    let numbers = (0..STEPS * BATCH * INPUTS).map(|i| (i as f32).sin()).collect();
    let x = Tensor::from_vec([STEPS, BATCH, INPUTS], numbers)?;
    let mask = (0..STEPS * BATCH).map(|i| Bool::from(i / BATCH < LENGTHS[i % BATCH])).collect();
    let mask = Tensor::from_vec([STEPS, BATCH], mask)?;

    let mut net = Net::new();
    let given = [
        net.net.input("x", DType::F32, &[-1, -1, INPUTS as i64]),
        net.net.input("mask", DType::Bool, &[-1, -1]),
    ];
    let (of_program, weight) = loss::<C>(&net.net, &given[0], &given[1]);
    let mut program = net.net.program()?.clone();
    let gradient = gradients(&mut program, &[&of_program.name()], &[&weight.name()], &Default::default())?;
    let gradient = program.name(gradient.entries()[0].unwrap()).to_string();
    let mut executor = Executor::new();
    executor.run(&net.net.startup().program()?, &mut net.scope, &[], &[])?;
    let feeds: [(&str, &dyn Feed); 2] = [("x", &x), ("mask", &mask)];
    let fetched = executor.run(&program, &mut net.scope, &feeds, &[&of_program.name(), &gradient])?;

    let eager = autobwd::tape::eager_with_threads(1);
    let (at_once, weight) = loss::<C>(&eager, &eager.constant(x), &eager.constant(mask));
    let gradient = tape::grad(&[&at_once], &[&weight], &tape::GradOptions::default())?;
    assert_near(&at_once.tensor()?.to_f64s(), &fetched[0].to_f64s(), 1e-6);
    let gradient = gradient[0].as_ref().unwrap().tensor()?;
    assert_near(&gradient.to_f64s(), &fetched[1].to_f64s(), 1e-6);
    assert!(gradient.to_f64s().iter().any(|g| *g != 0.0));
    Ok(())
}

#[test]
fn fused_and_stepwise_recurrent_layers_are_equal() -> Result<()> {
    check_eager::<RnnCell>()?;
    check_eager::<GruCell>()?;
    check_eager::<LstmCell>()
}

/// Two layers applied to a sequence, and to another input.
type Forward<'a> = &'a dyn Fn(&Gru, &Expr, &Expr) -> (Expr, Vec<Expr>);

#[test]
fn invalid_recurrent_layers_are_refused() {
    // Each in a program of its own, which reports the same error.
    let error = |dtype: DType, dims: &[i64], forward: Forward<'_>| {
        let net = Builder::new();
        let x = net.input("x", DType::F32, &[4, 3, 2]);
        let layers = Gru::builder(&net, 2, 5).layers(2).build();
        let (out, last) = forward(&layers, &x, &net.input("other", dtype, dims));
        assert!(last.len() == 2 && last.iter().any(|state| state.check().is_err()));
        let text = out.check().unwrap_err().to_string();
        assert_eq!(net.program().unwrap_err().to_string(), text);
        text
    };
    let forward: Forward<'_> = &|layers, _, other| layers.forward(other);
    let masked: Forward<'_> = &|layers, x, other| layers.forward_with(x, None, Some(other));

    let text = error(DType::F32, &[3, 2], forward);
    let expected = "other: float32 [3, 2] is not of the shape [steps, batch, inputs]\n  at tests/framework/recurrent_layers.rs:";
    assert!(text.starts_with(expected), "{text}");
    let one: Forward<'_> =
        &|layers, x, other| layers.forward_with(x, Some(std::slice::from_ref(other)), None);
    let text = error(DType::F32, &[3, 5], one);
    assert!(text.starts_with("2 initial states are needed, not 1\n  at "), "{text}");
    let two: Forward<'_> = &|layers, x, other| {
        let state = x.builder().input("state", DType::F32, &[3, 5]);
        layers.forward_with(x, Some(&[state, other.clone()]), None)
    };
    let text = error(DType::F32, &[3, 6], two);
    assert!(text.contains("6 rows are needed"), "{text}");
    let text = error(DType::F32, &[4, 3], masked);
    assert!(
        text.starts_with("other: float32 [4, 3] is not a mask: bool [steps, batch] is needed\n"),
        "{text}"
    );
    let text = error(DType::Bool, &[4], masked);
    assert!(text.starts_with("other: bool [4] is not a mask: bool [steps, batch] is needed\n"), "{text}");
    let text = error(DType::Bool, &[3, 3], masked);
    assert!(
        text.contains("bool [3, 3, 1] has 3 steps, but a sequence before it has 4\n")
            && text.contains("\n  within block"),
        "{text}"
    );
    let text = error(DType::Bool, &[4, 2], masked);
    assert!(text.contains("do not broadcast"), "{text}");
    let text = error(DType::F32, &[4, 3, 5], forward);
    assert!(text.contains("operator `matmul_v2`"), "{text}");
    let double: Forward<'_> =
        &|layers, x, other| layers.forward_with(x, Some(&[other.clone(), other.clone()]), None);
    let text = error(DType::F64, &[3, 5], double);
    assert!(text.contains("operator `matmul_v2`"), "{text}");
    let text = error(DType::F32, &[0, 3, 2], forward);
    assert!(text.starts_with("other: float32 [0, 3, 2] has no steps\n"), "{text}");
}
