//! `rnn`: layers of LSTM, GRU or simple recurrent units over whole sequences, in one or both directions.
//!
//! The input projections of all steps are one product. Then each step is a product with the recurrent weights and one
//! loop over the elements; parts of the batch run in parallel.

mod backward;
mod cells;
mod composition;
mod forward;
mod gru_unit;
mod layout;
mod samples;

use autobwd::{
    Attrs, Buf, Composed, Cx, DType, Dims, Error, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    op::with_float, operators::same_count, register_op, tensor::Dim,
};

pub use crate::units::RnnMode;
use crate::{
    gather::are_numbers,
    kernel_helpers::PART,
    random::{rng, unit},
};
pub use gru_unit::GruUnit;
use layout::{Lengths, RnnLayout, parameters};

/// The attributes of recurrent layers.
#[derive(Attrs, Clone, Debug)]
pub struct RnnAttrs {
    /// Probability with which an element between two layers is dropped in training; the others are scaled by
    /// `1 / (1 - dropout_prob)`.
    #[attr(default = 0.0, min = 0.0, max = 1.0)]
    pub dropout_prob: f32,
    /// Two directions: every layer also reads the sequence from its end.
    #[attr(default = false)]
    pub is_bidirec: bool,
    /// Elements of a step of `input`.
    #[attr(default = 10, min = 1)]
    pub input_size: i32,
    /// Number of units of a layer in one direction.
    #[attr(default = 100, min = 1)]
    pub hidden_size: i32,
    /// Number of layers; each reads the output of the one before.
    #[attr(default = 1, min = 1)]
    pub num_layers: i32,
    /// The kind of units.
    #[attr(default = RnnMode::Tanh)]
    pub mode: RnnMode,
    /// Seed of dropout: equal seeds give equal masks, and 0 is a seed like any other.
    #[attr(default = 0)]
    pub seed: i32,
    /// Inference mode: no element is dropped.
    #[attr(default = false)]
    pub is_test: bool,
}

impl RnnAttrs {
    fn directions(&self) -> usize {
        1 + usize::from(self.is_bidirec)
    }

    /// Whether elements between layers are dropped.
    pub fn drops(&self) -> bool {
        !self.is_test && self.dropout_prob > 0.0 && self.num_layers > 1
    }

    /// Seed of the mask behind a layer.
    fn seed_behind(&self, layer: usize) -> i32 {
        self.seed.wrapping_add(layer as i32)
    }
}

/// Recurrent layers over a sequence (LSTM, GRU, or simple recurrent units). In every step `t` of a layer, with `x` the
/// step's input, `h` and `c` the states before the step, and parts of weights and biases in the order of the names:
///
/// - `LSTM`: `i, f, g, o = weight_ih · x + bias_ih + weight_hh · h + bias_hh`, `c' = sigmoid(f) * c + sigmoid(i) *
///   tanh(g)`, `h' = sigmoid(o) * tanh(c')`.
/// - `GRU`: `r, z, n = weight_ih · x + bias_ih` and `r', z', n' = weight_hh · h + bias_hh`,
///   `m = tanh(n + sigmoid(r + r') * n')`, `h' = (h - m) * sigmoid(z + z') + m`.
/// - `RNN_TANH`, `RNN_RELU`: `h' = f(weight_ih · x + bias_ih + weight_hh · h + bias_hh)`.
///
/// `out[t]` of a layer is `h'`, those of both directions one behind the other. A step at or behind the length of a
/// sequence has output 0 and keeps the states; the second direction thus begins with the last step of each sequence.
#[register_op(name = "rnn", grad = RnnRule, infallible)]
pub struct RnnLayers<V = Var> {
    /// The sequences, `[steps, batch, input_size]`.
    #[input]
    pub input: V,
    /// Hidden states before the first step, and with `LSTM` cell states: `[layers * directions, batch, hidden_size]`
    /// each, the directions of a layer one behind the other.
    #[input]
    pub pre_state: Vec<V>,
    /// For each layer and direction `weight_ih`, `[gates * hidden_size, input]`, and `weight_hh`,
    /// `[gates * hidden_size, hidden_size]`; then for each layer and direction `bias_ih` and `bias_hh`,
    /// `[gates * hidden_size]`. There are 4 gates with `LSTM`, 3 with `GRU`, else 1. The first layer's `input` is
    /// `input_size`, that of others `directions * hidden_size`.
    #[input]
    pub weight_list: Vec<V>,
    /// Number of steps of each sequence, int32 or int64, `[batch]`; all steps if absent.
    #[input]
    pub sequence_length: Option<V>,
    /// Hidden states of the last layer, `[steps, batch, directions * hidden_size]`.
    #[output]
    pub out: V,
    /// Masks of dropout, uint8, `[layers - 1, steps, batch, directions * hidden_size]`: 1 where an element is kept;
    /// a single 0 without dropout.
    #[output]
    pub dropout_state: Option<V>,
    /// States after the last step, same shapes as `pre_state`.
    #[output]
    pub state: Vec<V>,
    /// What the gradient reads, of no use for anything else, `[n]`: activations, states before each step, and inputs of
    /// layers. With `is_test`, a single uint8 0.
    #[output]
    pub reserve: V,
    /// Sizes and kind of the layers.
    #[attrs]
    pub rnn: RnnAttrs,
}
impl Infer for RnnLayers<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (input, rnn) = (&self.input, &self.rnn);
        input.float()?;
        let [steps, batch, width] = input.unpack()?;
        input.require(steps != 0, || "at least one step is needed".into())?;
        let fits = width.agrees(Dim::from(rnn.input_size as usize));
        input.require(fits, || format!("steps of `input_size` = {} elements are needed", rnn.input_size))?;
        let (units, directions) = (rnn.hidden_size as usize, rnn.directions());
        let count = rnn.num_layers as usize * directions;
        same_count("PreState", self.pre_state.len(), rnn.mode.states())?;
        same_count("State", self.state.len(), rnn.mode.states())?;
        same_count("WeightList", self.weight_list.len(), 4 * count)?;
        let states = [count.into(), batch, units.into()];
        for state in &self.pre_state {
            state.same_dtype(input)?;
            let dims = Dims::from_iter(states);
            state
                .require(state.dims.agrees(&dims), || format!("{dims} is needed, a number for each unit"))?;
        }
        for (i, weight) in self.weight_list.iter().enumerate() {
            weight.same_dtype(input)?;
            let dims = parameters(rnn, i);
            let needed = || format!("{dims} is needed for number {i} of the list");
            weight.require(weight.dims.agrees(&dims), needed)?;
        }
        if let Some(lengths) = &self.sequence_length {
            are_numbers(lengths)?;
            let fits = lengths.dims.agrees(&[batch]);
            lengths.require(fits, || format!("[{batch}] is needed, a length for each sequence"))?;
        }
        self.out.set(input.dtype, Dims::from_iter([steps, batch, (directions * units).into()]));
        self.state.iter_mut().for_each(|state| state.set(input.dtype, Dims::from_iter(states)));
        let masks = match rnn.drops() {
            true => [Dim::from(rnn.num_layers as usize - 1)]
                .into_iter()
                .chain(self.out.dims.iter().copied())
                .collect(),
            false => Dims::default(),
        };
        if let Some(state) = &mut self.dropout_state {
            state.set(DType::U8, masks);
        }
        match rnn.is_test {
            true => self.reserve.set(DType::U8, []),
            false => self.reserve.set(input.dtype, Dims::from_iter([layout::reserved(rnn, steps, batch)])),
        }
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * products(&self.input, &self.weight_list)
    }
}
impl Kernel for RnnLayers<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let layout = RnnLayout::of(&self.rnn, &self.input)?;
        if let Some(masks) = &mut self.dropout_state {
            draw(cx, &self.rnn, layout.layer(), masks)?;
        }
        if self.rnn.is_test {
            self.reserve.bytes_mut()?.fill(0);
        }
        with_float!(self.input, T => {
            cx.scratch::<T, _>(layout.forward_scratch(&self.rnn), |scratch| self.forward(cx, &layout, scratch))
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let elements =
            RnnLayout::of(&self.rnn, &self.input).map_or(0, |layout| layout.forward_scratch(&self.rnn));
        elements.saturating_mul(self.input.dtype().size())
    }
}

/// Multiplications of all steps with all weights.
fn products(input: &Meta, weights: &[Meta]) -> Dim {
    let weights = weights.iter().map(|weight| weight.dims.numel());
    input.dims[0] * input.dims[1] * weights.fold(Dim::from(0), |sum, n| sum + n)
}

/// Draws the masks behind all layers but the last, of `size` elements each.
fn draw(cx: &Cx, rnn: &RnnAttrs, size: usize, masks: &mut Buf<'_>) -> Result<()> {
    let masks = masks.slice_mut::<u8>()?;
    if !rnn.drops() {
        masks.fill(0);
        return Ok(());
    }
    for (layer, mask) in masks.chunks_exact_mut(size.max(1)).enumerate() {
        cx.chunks_mut(mask, PART, |part, mask| {
            let mut rng = rng(rnn.seed_behind(layer));
            rng.advance((part * PART) as u128);
            mask.iter_mut().for_each(|mask| *mask = (unit(&mut rng) >= f64::from(rnn.dropout_prob)).into());
        });
    }
    Ok(())
}

/// One gradient operator for outputs and states; the gradient of `reserve`, and that with `is_test`, comes from the
/// composition.
#[derive(Debug)]
pub struct RnnRule;
impl GradRule<RnnLayers> for RnnRule {
    fn emit(fwd: &RnnLayers, g: &mut GradCx<'_>) {
        let inputs = ["Input", "PreState", "WeightList"];
        if fwd.rnn.is_test {
            return g.compose(&["Out", "State"], &inputs);
        }
        let of = RnnGrad {
            input: fwd.input,
            pre_state: fwd.pre_state.clone(),
            weight_list: fwd.weight_list.clone(),
            sequence_length: fwd.sequence_length,
            out: fwd.out,
            dropout_state: fwd.dropout_state,
            reserve: fwd.reserve,
            dout: g.grad(fwd.out),
            dstate: fwd.state.iter().map(|state| g.grad(*state)).collect(),
            dinput: g.wanted(fwd.input),
            dpre_state: fwd.pre_state.iter().map(|state| g.wanted(*state)).collect(),
            dweight_list: fwd.weight_list.iter().map(|weight| g.wanted(*weight)).collect(),
            rnn: fwd.rnn.clone(),
        };
        g.push(of);
        g.compose(&["Reserve"], &inputs);
    }
}

/// The gradients of inputs, states and weights, by backpropagation through all steps.
#[register_op(grad_of = RnnLayers, grad = Composed, infallible)]
pub struct RnnGrad<V = Var> {
    pub input: V,
    #[input(shape_only)]
    pub pre_state: Vec<V>,
    pub weight_list: Vec<V>,
    pub sequence_length: Option<V>,
    #[input(shape_only)]
    pub out: V,
    #[input(shape_only)]
    pub dropout_state: Option<V>,
    pub reserve: V,
    pub dout: V,
    pub dstate: Vec<V>,
    #[output]
    pub dinput: Option<V>,
    #[output]
    pub dpre_state: Vec<Option<V>>,
    #[output]
    pub dweight_list: Vec<Option<V>>,
    #[attrs]
    pub rnn: RnnAttrs,
}
impl Infer for RnnGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        if self.rnn.is_test {
            return Err(Error::attr(
                "is_test",
                "`rnn_grad` needs `Reserve`, which `rnn` writes in training only",
            ));
        }
        let unset = |like: &Meta| Meta::new(like.dtype, Dims::default());
        let mut forward = RnnLayers {
            input: self.input.clone(),
            pre_state: self.pre_state.clone(),
            weight_list: self.weight_list.clone(),
            sequence_length: self.sequence_length.clone(),
            out: unset(&self.out),
            dropout_state: None,
            state: self.pre_state.iter().map(unset).collect(),
            reserve: unset(&self.reserve),
            rnn: self.rnn.clone(),
        };
        forward.infer()?;
        for (given, needed) in [(&self.dout, &forward.out), (&self.reserve, &forward.reserve)] {
            given.same_dtype(needed)?;
            given.require(given.dims.agrees(&needed.dims), || format!("{} is needed", needed.dims))?;
        }
        same_count("State@GRAD", self.dstate.len(), forward.state.len())?;
        for (given, needed) in self.dstate.iter().zip(&forward.state) {
            given.same_dtype(needed)?;
            given.require(given.dims.agrees(&needed.dims), || format!("{} is needed", needed.dims))?;
        }
        same_count("PreState@GRAD", self.dpre_state.len(), self.pre_state.len())?;
        same_count("WeightList@GRAD", self.dweight_list.len(), self.weight_list.len())?;
        if let Some(dinput) = &mut self.dinput {
            dinput.like(&self.input);
        }
        let states = self.dpre_state.iter_mut().zip(&self.pre_state);
        for (gradient, value) in states.chain(self.dweight_list.iter_mut().zip(&self.weight_list)) {
            gradient.iter_mut().for_each(|gradient| gradient.like(value));
        }
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(4) * products(&self.input, &self.weight_list)
    }
}
impl Kernel for RnnGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let layout = RnnLayout::of(&self.rnn, &self.input)?;
        with_float!(self.input, T => {
            cx.scratch::<T, _>(layout.backward_scratch(), |scratch| self.backward(cx, &layout, scratch))
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let elements = RnnLayout::of(&self.rnn, &self.input).map_or(0, |layout| layout.backward_scratch());
        elements.saturating_mul(self.input.dtype().size())
    }
}
