use autobwd::{Builder, DType, Expr, New, Result, emit};

use super::parameter;
use crate::{Init, Math, lstm::LstmSequence};

/// Long short-term memory (Hochreiter and Schmidhuber, 1997; Gers et al., 2000) over sequences, with the gates in the
/// order input, forget, cell, output.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::{Math, nn::Lstm, optim::{Optimizer, Sgd}};
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[20, -1, 8])?;
/// let (hidden, _) = Lstm::new(&net, 8, 16).seed(7).build()?.forward(&x)?;
/// assert_eq!(hidden.dims().to_string(), "[20, -1, 16]");
/// let last = hidden.slice(0, -1, 20)?;
/// Sgd { rate: 0.01 }.minimize(&last.square()?.mean()?)?;
/// # Ok::<(), autobwd::Error>(())
/// ```
pub struct Lstm {
    /// Weights of the inputs, `[inputs, 4 * units]`.
    pub input_weight: Expr,
    /// Weights of the states, `[units, 4 * units]`.
    pub state_weight: Expr,
    /// Bias, `[4 * units]`.
    pub bias: Expr,
}

/// What an [`Lstm`] layer is to be like.
pub struct LstmOptions<'a> {
    net: &'a Builder,
    inputs: usize,
    units: usize,
    dtype: DType,
    weight: Init,
    seed: i32,
}

impl Lstm {
    /// A layer from `inputs` numbers to states of `units` numbers: float32, weights by [`Init::XavierUniform`], bias 0.
    // What is made are the options of a layer; `build` makes the layer itself.
    #[allow(clippy::new_ret_no_self)]
    pub fn new(net: &Builder, inputs: usize, units: usize) -> LstmOptions<'_> {
        LstmOptions { net, inputs, units, dtype: DType::F32, weight: Init::XavierUniform, seed: 0 }
    }

    /// States and cells after each step, `[steps, batch, units]` both, of `x`, `[steps, batch, inputs]`; before the first
    /// step they are 0.
    ///
    /// # Errors
    /// Another number of inputs, or another dtype.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Result<(Expr, Expr)> {
        self.emit(x, None)
    }

    /// As [`forward`](Lstm::forward), from these states and cells on, `[batch, units]` both.
    ///
    /// # Errors
    /// As there; states or cells of another shape.
    #[track_caller]
    pub fn forward_from(&self, x: &Expr, hidden: &Expr, cell: &Expr) -> Result<(Expr, Expr)> {
        self.emit(x, Some([hidden, cell]))
    }

    #[track_caller]
    fn emit(&self, x: &Expr, initial: Option<[&Expr; 2]>) -> Result<(Expr, Expr)> {
        let gates = (&x.matmul(&self.input_weight)? + &self.bias)?;
        let op = emit(LstmSequence {
            gates: (&gates).into(),
            weight: (&self.state_weight).into(),
            initial_hidden: initial.map(|[hidden, _]| hidden.into()),
            initial_cell: initial.map(|[_, cell]| cell.into()),
            hidden: New,
            cell: New,
            activations: New,
        })?;
        Ok((op.hidden, op.cell))
    }
}

impl LstmOptions<'_> {
    /// With parameters of that dtype.
    #[must_use]
    pub fn dtype(self, dtype: DType) -> Self {
        LstmOptions { dtype, ..self }
    }

    /// With weights initialised like that.
    #[must_use]
    pub fn init(self, weight: Init) -> Self {
        LstmOptions { weight, ..self }
    }

    /// With random values that follow from `seed`.
    #[must_use]
    pub fn seed(self, seed: i32) -> Self {
        LstmOptions { seed, ..self }
    }

    /// Adds the layer's parameters, `lstm_0.wx`, `lstm_0.wh` and `lstm_0.b`, to the program.
    ///
    /// # Errors
    /// Those of the initialiser.
    #[track_caller]
    pub fn build(self) -> Result<Lstm> {
        let LstmOptions { net, inputs, units, dtype, weight, seed } = self;
        let (name, gates) = (net.unique("lstm"), 4 * units);
        let weights =
            |part, rows, seed| parameter(net, &format!("{name}.{part}"), dtype, &[rows, gates], weight, seed);
        let (input_weight, state_weight) =
            (weights("wx", inputs, seed)?, weights("wh", units, seed.wrapping_add(1))?);
        let bias = parameter(net, &format!("{name}.b"), dtype, &[gates], Init::Constant(0.0), seed)?;
        Ok(Lstm { input_weight, state_weight, bias })
    }
}
