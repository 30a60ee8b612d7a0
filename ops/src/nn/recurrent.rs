//! Recurrent layers: the trait `RecurrentCell` of one step, and `Recurrence`, which runs it over sequences.

use std::marker::PhantomData;

use autobwd::{Builder, DType, Error, ErrorKind, Expr, New, Result, emit};

use super::{layer_name, parameter};
use crate::{
    Init, Math, concat, control::static_rnn, fill::FillZerosLike, lstm::LstmSequence, shape::at,
    units::RnnMode,
};

/// One step of a recurrent layer.
pub trait RecurrentCell {
    /// Name of the layer in parameter names: `gru` in `gru_0.wx`.
    const NAME: &'static str;
    /// Number of gates: pre-activations for each unit, from the input and from the previous output.
    const GATES: usize;
    /// Number of states of each unit; the first is the output.
    const STATES: usize;

    /// The states after a step, `[batch, units]` each, from the input projections of the gates,
    /// `[batch, GATES * units]`, the previous states, and the recurrent weights, `[units, GATES * units]`.
    fn step(gates: &Expr, states: &[Expr], weight: &Expr) -> Vec<Expr>;

    /// The states after every step, `[steps, batch, units]` each, if one operator computes all steps; without `states`,
    /// they start from 0.
    fn fused(gates: &Expr, states: Option<&[Expr]>, weight: &Expr) -> Option<Vec<Expr>> {
        let _ = (gates, states, weight);
        None
    }
}

/// Simple RNN: `h ← tanh(x · wx + b + h · wh)` (Elman, 1990).
#[derive(Debug)]
pub enum RnnCell {}
impl RecurrentCell for RnnCell {
    const NAME: &'static str = "rnn";
    const GATES: usize = 1;
    const STATES: usize = 1;

    fn step(gates: &Expr, states: &[Expr], weight: &Expr) -> Vec<Expr> {
        RnnMode::Tanh.step(gates, &states[0].matmul(weight), states).1
    }
}

/// GRU (Cho et al., 2014; with the product before the reset gate, as in cuDNN). With `r, z, n` the thirds of
/// `x · wx + b` and `r', z', n'` those of `h · wh`: `r ← sigmoid(r + r')`, `z ← sigmoid(z + z')`,
/// `n ← tanh(n + r * n')` and `h ← (1 - z) * n + z * h`.
#[derive(Debug)]
pub enum GruCell {}
impl RecurrentCell for GruCell {
    const NAME: &'static str = "gru";
    const GATES: usize = 3;
    const STATES: usize = 1;

    fn step(gates: &Expr, states: &[Expr], weight: &Expr) -> Vec<Expr> {
        RnnMode::Gru.step(gates, &states[0].matmul(weight), states).1
    }
}

/// LSTM (Hochreiter and Schmidhuber, 1997; Gers et al., 2000). With `i, f, g, o` the quarters of `x · wx + b + h · wh`:
/// `c ← sigmoid(f) * c + sigmoid(i) * tanh(g)` and `h ← sigmoid(o) * tanh(c)`. The states are `h` and `c`.
#[derive(Debug)]
pub enum LstmCell {}
impl RecurrentCell for LstmCell {
    const NAME: &'static str = "lstm";
    const GATES: usize = 4;
    const STATES: usize = 2;

    fn step(gates: &Expr, states: &[Expr], weight: &Expr) -> Vec<Expr> {
        RnnMode::Lstm.step(gates, &states[0].matmul(weight), states).1
    }

    fn fused(gates: &Expr, states: Option<&[Expr]>, weight: &Expr) -> Option<Vec<Expr>> {
        let op = emit(LstmSequence {
            gates: gates.into(),
            weight: weight.into(),
            initial_hidden: states.map(|states| (&states[0]).into()),
            initial_cell: states.map(|states| (&states[1]).into()),
            hidden: New,
            cell: New,
            activations: New,
        });
        Some(vec![op.hidden, op.cell])
    }
}

/// The number of rows of the recurrent weights.
fn units(weight: &Expr) -> usize {
    weight.dims().first().and_then(|units| units.get()).unwrap_or(0)
}

/// One or more layers of [`RnnCell`]s over sequences, built and called as [`Gru`].
pub type Rnn = Recurrence<RnnCell>;

/// One or more layers of [`GruCell`]s over sequences.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn::Gru, optim::{Optimizer, Sgd}};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, -1, 8]); // steps, sequences, numbers
/// let goes_on = net.input("goes_on", DType::Bool, &[-1, -1]); // false in a step after a sequence's end
/// let gru = Gru::builder(&net, 8, 16).layers(2).bidirectional().seed(7).build();
/// let (out, last) = gru.forward_with(&x, None, Some(&goes_on));
/// assert_eq!(out.dims().to_string(), "[-1, -1, 32]");
/// // The last state of each layer, and, for the reverse direction, the state at the first step.
/// assert_eq!((last.len(), last[0].dims().to_string()), (4, "[-1, 16]".into()));
/// Sgd { rate: 0.01 }.minimize(&out.square().mean())?.complete()?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub type Gru = Recurrence<GruCell>;

/// One or more layers of [`LstmCell`]s over sequences, built and called as [`Gru`].
///
/// Without a mask, one operator, `lstm_sequence`, computes all steps; it is fast but has no third derivative. With a
/// mask, `recurrent` computes them.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn::Lstm, optim::{Optimizer, Sgd}};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[20, -1, 8]);
/// let (hidden, last) = Lstm::builder(&net, 8, 16).seed(7).build().forward(&x);
/// assert_eq!(hidden.dims().to_string(), "[20, -1, 16]");
/// assert_eq!(last.len(), 2); // the last state and the last cell
/// Sgd { rate: 0.01 }.minimize(&last[0].square().mean())?.complete()?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub type Lstm = Recurrence<LstmCell>;

/// Recurrent layers of one kind of [`RecurrentCell`]: [`Rnn`], [`Gru`] and [`Lstm`].
#[derive(Debug)]
pub struct Recurrence<C> {
    /// Layer by layer: the forward direction, then the reverse direction, if the layer is bidirectional.
    pub passes: Vec<DirectionWeights>,
    directions: usize,
    cell: PhantomData<C>,
}

/// Parameters of one direction of a layer.
#[derive(Debug)]
pub struct DirectionWeights {
    /// Input weights, `[inputs, GATES * units]`.
    pub input_weight: Expr,
    /// Recurrent weights, `[units, GATES * units]`.
    pub state_weight: Expr,
    /// Bias, `[GATES * units]`.
    pub bias: Expr,
}

/// Builder of a [`Recurrence`].
#[derive(Debug)]
pub struct RecurrenceBuilder<'a, C> {
    net: &'a Builder,
    name: Option<String>,
    inputs: usize,
    units: usize,
    layers: usize,
    directions: usize,
    dtype: DType,
    weight: Init,
    seed: i32,
    cell: PhantomData<C>,
}

impl<C: RecurrentCell> Recurrence<C> {
    /// One layer from `inputs` to `units` features, forward direction only: float32, weights by
    /// [`Init::XavierUniform`], bias 0.
    pub fn builder(net: &Builder, inputs: usize, units: usize) -> RecurrenceBuilder<'_, C> {
        RecurrenceBuilder {
            net,
            name: None,
            inputs,
            units,
            layers: 1,
            directions: 1,
            dtype: DType::F32,
            weight: Init::XavierUniform,
            seed: 0,
            cell: PhantomData,
        }
    }

    /// Layers with these parameters, forward direction only.
    pub fn of(passes: Vec<DirectionWeights>) -> Recurrence<C> {
        Recurrence { passes, directions: 1, cell: PhantomData }
    }

    /// As [`forward_with`](Recurrence::forward_with), with initial states 0, over sequences of one length.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> (Expr, Vec<Expr>) {
        self.forward_with(x, None, None)
    }

    /// Runs over sequences `x`, `[steps, batch, inputs]`. Returns the outputs of the last layer,
    /// `[steps, batch, units]`, and the final states, `[batch, units]` each, of all `passes` in order. The outputs of
    /// both directions are concatenated.
    ///
    /// `states` are the initial states, in the order of the final ones; 0 if absent.
    ///
    /// `mask`, bool `[steps, batch]`, says which steps belong to the sequences. Masked steps change no state, and their
    /// outputs are 0: padding after a sequence has no influence in either direction.
    ///
    /// All results fail without steps, for other shapes or dtypes, and for another number of states.
    #[track_caller]
    pub fn forward_with(&self, x: &Expr, states: Option<&[Expr]>, mask: Option<&Expr>) -> (Expr, Vec<Expr>) {
        let needed = self.passes.len() * C::STATES;
        if let Err(e) = checked(x, states, needed, mask) {
            let failed = x.builder().failed(e);
            return (failed.clone(), vec![failed; needed]);
        }
        let mask = mask.map(|mask| mask.unsqueeze(&[2]));
        let mut states = states.map(|states| states.chunks(C::STATES));
        let (mut x, mut last) = (x.clone(), vec![]);
        for layer in self.passes.chunks(self.directions) {
            let mut outputs = vec![];
            for (pass, reverse) in layer.iter().zip([false, true]) {
                let states = states.as_mut().and_then(Iterator::next);
                let (output, after) = pass.forward::<C>(&x, states, mask.as_ref(), reverse);
                outputs.push(output);
                last.extend(after);
            }
            x = match &outputs[..] {
                [output] => output.clone(),
                outputs => concat(&outputs.iter().collect::<Vec<_>>(), 2),
            };
        }
        (x, last)
    }
}

/// Checks the arguments of [`Recurrence::forward_with`].
fn checked(x: &Expr, states: Option<&[Expr]>, needed: usize, mask: Option<&Expr>) -> Result<()> {
    let dims = x.check()?.dims();
    if dims.len() != 3 {
        let text = format!("{x} is not of the shape [steps, batch, inputs]");
        return Err(Error::new(ErrorKind::Shape, text));
    }
    if dims[0].get() == Some(0) {
        return Err(Error::new(ErrorKind::Shape, format!("{x} has no steps")));
    }
    if let Some(mask) = mask
        && (mask.check()?.dims().len() != 2 || mask.dtype() != DType::Bool)
    {
        let text = format!("{mask} is not a mask: bool [steps, batch] is needed");
        return Err(Error::new(ErrorKind::Shape, text));
    }
    if let Some(states) = states.filter(|states| states.len() != needed) {
        let text = format!("{needed} initial states are needed, not {}", states.len());
        return Err(Error::new(ErrorKind::Slot, text));
    }
    Ok(())
}

/// Outputs and final states.
type OutputsAndStates = (Expr, Vec<Expr>);

impl DirectionWeights {
    /// The outputs of all steps and the final states. The mask is `[steps, batch, 1]`.
    #[track_caller]
    fn forward<C: RecurrentCell>(
        &self,
        x: &Expr,
        states: Option<&[Expr]>,
        mask: Option<&Expr>,
        reverse: bool,
    ) -> OutputsAndStates {
        // One product projects the inputs of all steps.
        let gates = x.matmul(&self.input_weight) + &self.bias;
        if mask.is_none() {
            let turned = |x: &Expr| if reverse { x.flip(&[0]) } else { x.clone() };
            if let Some(after) = C::fused(&turned(&gates), states, &self.state_weight) {
                return (turned(&after[0]), after.iter().map(|states| at(states, -1)).collect());
            }
        }
        let units = units(&self.state_weight) as i32;
        let first = match states {
            Some(states) => states.to_vec(),
            None => vec![zeros_like(&at(&gates, 0).slice(1, 0, units)); C::STATES],
        };
        let sequences: Vec<Expr> = [&gates].into_iter().chain(mask).cloned().collect();
        over_steps(&sequences, &first, reverse, |x, before| {
            let after = C::step(&x[0], before, &self.state_weight);
            let Some(mask) = x.get(1) else { return (after[0].clone(), after) };
            let mask = mask.expand(&[-1, units]);
            let output = mask.where_cond(&after[0], &zeros_like(&after[0]));
            let states = after.iter().zip(before).map(|(after, before)| mask.where_cond(after, before));
            (output, states.collect())
        })
    }
}

/// The outputs of all steps and the final states, by `static_rnn`.
#[track_caller]
fn over_steps(
    sequences: &[Expr],
    first: &[Expr],
    reverse: bool,
    step: impl Fn(&[Expr], &[Expr]) -> OutputsAndStates,
) -> OutputsAndStates {
    let mut found = static_rnn(sequences[0].builder(), reverse, |rnn| {
        let x: Vec<Expr> = sequences.iter().map(|x| rnn.step_input(x)).collect();
        let before: Vec<Expr> = first.iter().map(|state| rnn.memory(state)).collect();
        let (output, after) = step(&x, &before);
        for (before, after) in before.iter().zip(&after) {
            rnn.update_memory(before, after);
            rnn.last_output(before);
        }
        rnn.step_output(&output);
    });
    let last = found.split_off(1);
    (found.remove(0), last)
}

#[track_caller]
fn zeros_like(x: &Expr) -> Expr {
    emit(FillZerosLike { x: x.into(), out: New }).out
}

impl<C: RecurrentCell> RecurrenceBuilder<'_, C> {
    /// Names the layer, within the current [name scope](Builder::name_scope): `decoder.wx` for a layer called `decoder`.
    /// With several passes (layers and directions), these are `decoder.0`, `decoder.1`, …
    #[must_use]
    pub fn name(self, name: impl Into<String>) -> Self {
        RecurrenceBuilder { name: Some(name.into()), ..self }
    }

    /// Sets the number of layers, each over the outputs of the one before.
    #[must_use]
    pub fn layers(self, layers: usize) -> Self {
        RecurrenceBuilder { layers, ..self }
    }

    /// Adds a reverse direction to each layer.
    #[must_use]
    pub fn bidirectional(self) -> Self {
        RecurrenceBuilder { directions: 2, ..self }
    }

    super::layer_setters!(dtype, init, seed);

    /// Adds the parameters to the program: `gru_0.wx`, `gru_0.wh` and `gru_0.b` for the first pass, and so on.
    #[track_caller]
    pub fn build(self) -> Recurrence<C> {
        let RecurrenceBuilder { net, name, inputs, units, layers, directions, dtype, weight, seed, .. } =
            self;
        let columns = C::GATES * units;
        let mut passes = vec![];
        for pass in 0..layers * directions {
            let own = name.as_ref().map(|name| match layers * directions {
                1 => name.clone(),
                _ => format!("{name}.{pass}"),
            });
            let name = layer_name(net, C::NAME, own.as_deref());
            let weights =
                |part, rows| parameter(net, &format!("{name}.{part}"), dtype, &[rows, columns], weight, seed);
            let input_weight = weights("wx", if pass < directions { inputs } else { directions * units });
            let state_weight = weights("wh", units);
            let bias = parameter(net, &format!("{name}.b"), dtype, &[columns], Init::Constant(0.0), seed);
            passes.push(DirectionWeights { input_weight, state_weight, bias });
        }
        Recurrence { passes, directions, cell: PhantomData }
    }
}
