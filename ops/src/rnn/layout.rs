//! Sizes of recurrent layers, and the layout of `Reserve`.
//!
//! `Reserve` has, for each layer: for each direction, the rows of gates of all steps, and the hidden states and cell
//! states between steps; then, unless the layer is the last, its output behind dropout. There is one state more than
//! there are steps: in the first direction, state `t` is before step `t`; in the second one, it is behind it.

use std::ops::Range;

use autobwd::{Buf, DType, Dims, Result, tensor::Dim};

use super::{RnnAttrs, RnnMode};
use crate::kernel_helpers::PART as ELEMENTS;

/// Multiplications of a unit of shared work.
const PART: usize = 1 << 20;
/// Fewest rows for which a matrix product is fast.
const ROWS: usize = 8;

/// The shape of number `i` of `WeightList`.
pub(super) fn parameters(rnn: &RnnAttrs, i: usize) -> Dims {
    let (units, directions) = (rnn.hidden_size as usize, rnn.directions());
    let count = rnn.num_layers as usize * directions;
    let rows = rnn.mode.gates() * units;
    let input = if i / 2 < directions { rnn.input_size as usize } else { directions * units };
    match i {
        i if i >= 2 * count => Dims::from([rows]),
        i if i % 2 == 0 => Dims::from([rows, input]),
        _ => Dims::from([rows, units]),
    }
}

/// The number of elements of `Reserve`.
pub(super) fn reserved(rnn: &RnnAttrs, steps: Dim, batch: Dim) -> Dim {
    let of = |n: usize| Dim::from(n);
    let (units, layers) = (of(rnn.hidden_size as usize), of(rnn.num_layers as usize));
    let (directions, states) = (of(rnn.directions()), of(rnn.mode.states()));
    let gates = steps * batch * of(rnn.mode.row_parts()) * units;
    let unit = gates + states * (steps + of(1)) * batch * units;
    layers * directions * unit + of(rnn.num_layers as usize - 1) * steps * batch * directions * units
}

#[derive(Clone, Copy)]
pub(super) struct RnnLayout {
    pub(super) mode: RnnMode,
    pub(super) steps: usize,
    pub(super) batch: usize,
    input: usize,
    pub(super) units: usize,
    pub(super) layers: usize,
    pub(super) directions: usize,
}

impl RnnLayout {
    pub(super) fn of(rnn: &RnnAttrs, input: &Buf<'_>) -> Result<RnnLayout> {
        let &[steps, batch, width] = input.dims() else { return Err(input.wrong("3 dimensions are needed")) };
        Ok(RnnLayout {
            mode: rnn.mode,
            steps,
            batch,
            input: width,
            units: rnn.hidden_size as usize,
            layers: rnn.num_layers as usize,
            directions: rnn.directions(),
        })
    }

    /// Steps of all sequences.
    pub(super) fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// Elements of a row of gates.
    pub(super) fn row(&self) -> usize {
        self.mode.row_parts() * self.units
    }

    /// Elements of the gates of all steps.
    pub(super) fn gates(&self) -> usize {
        self.rows() * self.row()
    }

    /// Elements of one state of the whole batch.
    pub(super) fn state(&self) -> usize {
        self.batch * self.units
    }

    /// Elements of all states of one kind.
    pub(super) fn states(&self) -> usize {
        (self.steps + 1) * self.state()
    }

    /// Elements of one direction of a layer.
    pub(super) fn unit(&self) -> usize {
        self.gates() + self.mode.states() * self.states()
    }

    /// Elements of a layer's output in one step of one sequence.
    pub(super) fn width(&self) -> usize {
        self.directions * self.units
    }

    /// Elements of a layer's output.
    pub(super) fn layer(&self) -> usize {
        self.rows() * self.width()
    }

    /// Elements of a layer's input in one step of one sequence.
    pub(super) fn x_width(&self, layer: usize) -> usize {
        if layer == 0 { self.input } else { self.width() }
    }

    /// Batch rows that run together.
    pub(super) fn part(&self) -> usize {
        PART.div_ceil(self.row() * self.units).max(ROWS)
    }

    /// Rows of gates that are filled together.
    pub(super) fn filled(&self) -> usize {
        ELEMENTS.div_ceil(self.row()) * self.row()
    }

    /// The columns of a row of gates that the recurrent weights add to.
    pub(super) fn recurrent(&self) -> Range<usize> {
        let first = if self.mode == RnnMode::Gru { self.units } else { 0 };
        first..self.row()
    }

    /// The columns that parts of the input weights add to, each with the first row of the part.
    pub(super) fn projected(&self) -> [(Range<usize>, usize); 2] {
        let (units, row) = (self.units, self.row());
        match self.mode {
            RnnMode::Gru => [(units..3 * units, 0), (0..units, 2 * units)],
            _ => [(0..row, 0), (0..0, 0)],
        }
    }

    /// The states before and behind a step.
    pub(super) fn before_behind(&self, direction: usize, step: usize) -> (usize, usize) {
        if direction == 0 { (step, step + 1) } else { (step + 1, step) }
    }

    /// The steps in the order of a direction.
    pub(super) fn steps(&self, direction: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let steps = self.steps;
        (0..steps).map(move |i| if direction == 0 { i } else { steps - 1 - i })
    }

    /// The first state of a direction, and the last one.
    pub(super) fn ends(&self, direction: usize) -> (usize, usize) {
        if direction == 0 { (0, self.steps) } else { (self.steps, 0) }
    }

    /// The states before all steps, by step.
    pub(super) fn all_before<'a, T>(&self, direction: usize, states: &'a [T]) -> &'a [T] {
        &states[direction * self.state()..][..self.steps * self.state()]
    }

    /// The place of a layer's direction in `Reserve`, and of a layer's output.
    pub(super) fn place(&self, layer: usize, direction: usize) -> usize {
        layer * (self.directions * self.unit() + self.layer()) + direction * self.unit()
    }

    /// Scratch elements of a direction: transposed weights and a row of biases.
    pub(super) fn prepared(&self) -> usize {
        self.recurrent().len() * self.units + self.row()
    }

    /// Scratch elements of the kernel: prepared weights; and in place of `Reserve` the directions of a layer and the outputs of
    /// two layers.
    pub(super) fn forward_scratch(&self, rnn: &RnnAttrs) -> usize {
        let outputs = if self.layers > 1 { self.layer().saturating_mul(2) } else { 0 };
        let states = self.directions.saturating_mul(self.unit());
        let reserve = if rnn.is_test { states.saturating_add(outputs) } else { 0 };
        (self.directions * self.prepared()).saturating_add(reserve)
    }

    /// Scratch elements of the gradient's kernel: gates, states, a row of zeros, and the gradients of two layers'
    /// outputs.
    pub(super) fn backward_scratch(&self) -> usize {
        let outputs = self.layer() * (self.layers - 1).min(2);
        self.gates() + 2 * self.state() + self.units + outputs
    }
}

/// The number of steps of each sequence.
#[derive(Clone, Copy)]
pub(super) enum Lengths<'a> {
    All,
    I32(&'a [i32]),
    I64(&'a [i64]),
}

impl<'a> Lengths<'a> {
    pub(super) fn of(lengths: &'a Option<Buf<'_>>) -> Result<Lengths<'a>> {
        Ok(match lengths {
            None => Lengths::All,
            Some(lengths) if lengths.dtype() == DType::I32 => Lengths::I32(lengths.slice()?),
            Some(lengths) => Lengths::I64(lengths.slice()?),
        })
    }

    /// Whether a step is within a sequence.
    fn within(&self, step: usize, sequence: usize) -> bool {
        match self {
            Lengths::All => true,
            Lengths::I32(lengths) => i64::from(lengths[sequence]) > step as i64,
            Lengths::I64(lengths) => lengths[sequence] > step as i64,
        }
    }

    /// Calls `f(run, within)` for runs of sequences that all have, or all lack, a step; runs count from `first`.
    pub(super) fn runs(
        &self,
        step: usize,
        first: usize,
        count: usize,
        mut f: impl FnMut(Range<usize>, bool),
    ) {
        if let Lengths::All = self {
            return f(0..count, true);
        }
        let mut at = 0;
        while at < count {
            let within = self.within(step, first + at);
            let end = (at..count).find(|i| self.within(step, first + i) != within).unwrap_or(count);
            f(at..end, within);
            at = end;
        }
    }
}
