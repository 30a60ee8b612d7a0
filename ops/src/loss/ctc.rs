//! Connectionist temporal classification.
//!
//! A path has a class in each step. It spells a label if the label is left when repeated classes, then blanks, are left out.
//! The states of a label are its classes with blanks around them: `2 · length + 1`.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Dims, Error, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*, emit, op::with_float, register_op, tensor::Dim,
};

use crate::{
    Math,
    control::scan_to_last,
    gather::{are_numbers, place},
    kernel_helpers::{KernelFloat, nth},
    math::{concat, filled, in_dtype, like, positions, stack},
    scatter::TakeAlongAxis,
};

/// The logarithm of the probability of what cannot happen, in compositions: infinities have no gradients.
const NEVER: f32 = -1e30;
/// Operations for each state in a step.
const FLOPS: usize = 128;

/// The loss of connectionist temporal classification: `loss = -ln Σ Π exp(log_probs[t, path[t]])`, the sum over all paths
/// that spell the label.
///
/// From "Connectionist Temporal Classification: Labelling Unsegmented Sequence Data with Recurrent Neural Networks", Graves et
/// al., 2006. As in warp-ctc, the loss is 0 if there are fewer steps than the label needs: one for each class, and one for
/// the blank between two equal classes.
#[register_op(grad = CtcLossGrad)]
pub struct CtcLoss<V = Var> {
    /// Logarithms of the probabilities of classes, `[steps, batch, classes]`.
    #[input]
    pub log_probs: V,
    /// Classes, int64 or int32, `[batch, longest]`; none is the blank. What follows a label is not read.
    #[input(checked)]
    pub label: V,
    /// The number of steps of each row, int64 or int32, `[batch]`; all steps if absent.
    #[input(checked)]
    pub logits_length: Option<V>,
    /// The number of classes of each label, int64 or int32, `[batch]`; `longest` if absent.
    #[input(checked)]
    pub label_length: Option<V>,
    /// `[batch, 1]`.
    #[output]
    pub loss: V,
    /// The class of the blank.
    #[attr(default = 0)]
    pub blank: i32,
}
impl Infer for CtcLoss<Meta> {
    fn infer(&mut self) -> Result<()> {
        let lengths = [self.logits_length.as_ref(), self.label_length.as_ref()];
        let dims = infer_ctc(&self.log_probs, &self.label, lengths, self.blank)?;
        self.loss.set(self.log_probs.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        flops(&self.log_probs, &self.label)
    }
}
impl Kernel for CtcLoss<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let lengths = [self.logits_length.as_ref(), self.label_length.as_ref()];
        with_float!(self.log_probs, T => {
            let paths = Paths::<T>::new(&self.log_probs, &self.label, lengths, self.blank)?;
            let (loss, rows) = (self.loss.slice_mut::<T>()?, 2 * paths.states);
            cx.scratch(loss.len() * rows, |scratch| {
                cx.try_chunks_mut(scratch, rows, &mut [(); 0], |i, rows, _| {
                    let row = paths.row(i)?;
                    rows[0] = if row.is_possible { -row.forward(rows) } else { 0.0 };
                    Ok(())
                })?;
                loss.iter_mut().zip(scratch.chunks(rows)).for_each(|(loss, rows)| *loss = T::of(rows[0]));
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        2 * self.loss.numel() * states(&self.label) * size_of::<f64>()
    }
}
impl Composition for CtcLoss<Expr> {
    fn compose(&mut self) {
        let x = &self.log_probs;
        let (builder, dtype, steps, batch) = (x.builder(), x.dtype(), x.dim(0), x.dim(1));
        let longest = self.label.dim(1);
        let blanks = filled(builder, DType::I64, &self.blank.to_string(), &[batch.clone(), 1.into()]);
        let column = |length: &Option<Expr>, all: &Expr| match length {
            Some(length) => in_dtype(length, DType::I64).unsqueeze(&[1]),
            None => like(&blanks, 0.0) + all,
        };
        let label_length = column(&self.label_length, &longest.number(builder));
        let is_counted = positions(builder, &longest).unsqueeze(&[0]).less_than(&label_length);
        let padded = in_dtype(&self.label, DType::I64);
        let labels = is_counted.where_cond(&padded, &like(&padded, self.blank.into()));
        let before = concat(&[&blanks, &labels], 1).slice(1, 0, -1);
        // Blanks and classes by turns, from the first blank to the last one.
        let by_turns = |blank: &Expr, classes: &Expr, last: &Expr| {
            concat(&[&stack(&[blank, classes], 2).flatten(1, 2), last], 1)
        };
        let classes = by_turns(&like(&labels, self.blank.into()), &labels, &blanks);
        let weight = |possible: &Expr| {
            let [zero, never] = [0.0, NEVER.into()].map(|weight| like(&possible.cast(dtype), weight));
            possible.where_cond(&zero, &never)
        };
        let is_other =
            labels.not_equal(&before).logical_and(&labels.not_equal(&like(&labels, self.blank.into())));
        let skips = weight(&is_other);
        let never = |x: &Expr| like(&in_dtype(x, dtype), NEVER.into());
        let skips = by_turns(&never(&skips), &skips, &never(&blanks));

        let all = [steps.clone(), batch.clone(), skips.dim(1)];
        let index = (&classes.unsqueeze(&[0]).expand_to(&all)).into();
        let emitted = emit(TakeAlongAxis { input: x.into(), index, result: New, axis: 2 }).result;
        let steps_of_row = column(&self.logits_length, &steps.number(builder));
        let is_active =
            positions(builder, &steps).unsqueeze(&[1, 2]).less_than(&steps_of_row.unsqueeze(&[0]));
        let at = positions(builder, &skips.dim(1)).unsqueeze(&[0]) + like(&blanks, 0.0);
        let first = weight(&at.equal(&like(&at, 0.0)));
        let last = match steps.known() {
            Some(0) => first,
            _ => {
                let step = |x: &[Expr], before: &[Expr]| {
                    let moved = |n: i32| before[0].pad(&[[0, 0], [n, 0]], NEVER).slice(1, 0, -n);
                    let ways = stack(&[&before[0], &moved(1), &(moved(2) + &skips)], 0);
                    let after = ways.logsumexp(&[0]) + &x[0];
                    (vec![x[1].where_cond(&after, &before[0])], vec![])
                };
                scan_to_last(&[emitted, is_active], &[first], false, step).1.remove(0)
            }
        };
        let end = &label_length * like(&label_length, 2.0);
        let is_end = at.equal(&end).logical_or(&at.equal(&(&end - like(&end, 1.0))));
        let loss = -(last + weight(&is_end)).logsumexp_keepdim(&[1]);
        let repeated = labels.equal(&before).logical_and(&is_counted).cast(DType::I64);
        let needed = &label_length + repeated.sum_keepdim(&[1]);
        self.loss = needed.less_equal(&steps_of_row).where_cond(&loss, &like(&loss, 0.0));
    }
}
autobwd::samples!(
    CtcLoss,
    [
        ctc_loss(uniform([5, 2, 3]), given([2, 2], [1.0, 2.0, 2.0, 1.0]), FULL),
        CtcLoss {
            blank: 2,
            label: given([1, 2], [1.0, 0.0]).of(DType::I32),
            ..ctc_loss(uniform([4, 1, 3]), given([1, 2], [1.0, 0.0]), FULL)
        },
        ctc_loss(
            uniform([6, 3, 4]),
            given([3, 3], [3.0, 3.0, 1.0, 2.0, -9.0, 9.0, 1.0, 2.0, 3.0]),
            lengths([6.0, 4.0, 3.0], [3.0, 1.0, 0.0])
        ),
        // There is one step too few for the blank between the two equal classes.
        ctc_loss(uniform([2, 1, 3]), given([1, 2], [2.0, 2.0]), FULL),
        ctc_loss(uniform([3, 2, 4]), given([2, 0], []), FULL),
        ctc_loss(uniform([0, 2, 4]), given([2, 1], [1.0, 2.0]), lengths([0.0, 0.0], [0.0, 1.0])),
        ctc_loss(uniform([3, 0, 4]), given([0, 2], []), FULL),
        ctc_loss(uniform([3, 2, 4]), given([2, 1], [1.0, 4.0]), FULL).fails("`Label`: 4 is not within 0..4"),
        ctc_loss(uniform([3, 2, 4]), given([2, 1], [1.0, 0.0]), FULL).fails("`Label`: 0 is the blank"),
        ctc_loss(uniform([3, 2, 4]), given([2, 1], [1.0, 2.0]), lengths([4.0, 3.0], [1.0, 1.0]))
            .fails("`LogitsLength`: 4 is not within 0..4"),
        ctc_loss(uniform([3, 2, 4]), given([2, 1], [1.0, 2.0]), lengths([3.0, 3.0], [2.0, 1.0]))
            .fails("`LabelLength`: 2 is not within 0..2"),
        ctc_loss(uniform([3, 2, 4]), given([1, 2], [1.0, 2.0]), FULL)
            .fails("`Label`: classes of 2 labels are needed"),
        ctc_loss(uniform([3, 4]), given([3, 1], [1.0; 3]), FULL)
            .fails("`LogProbs`: dimensions [steps, batch, classes] are needed"),
        CtcLoss { blank: 4, ..ctc_loss(uniform([3, 2, 4]), given([2, 1], [1.0, 2.0]), FULL) }
            .fails("one of 4 classes is needed, not 4"),
    ]
);

fn ctc_loss(log_probs: Draw, label: Draw, lengths: [Option<Draw>; 2]) -> CtcLoss<Draw> {
    let [logits_length, label_length] = lengths;
    CtcLoss { log_probs, label: label.of(DType::I64), logits_length, label_length, loss: out(), blank: 0 }
}

fn lengths<const BATCH: usize>(steps: [f64; BATCH], classes: [f64; BATCH]) -> [Option<Draw>; 2] {
    [steps, classes].map(|lengths| Some(given([BATCH], lengths).of(DType::I64)))
}

const FULL: [Option<Draw>; 2] = [None, None];

/// `dlog_probs[t, c] = -dloss · Σ p(path) / Σ p(path)`, where the first sum is over the paths of the label whose class in
/// step `t` is `c`.
#[register_op(grad_of = CtcLoss, grad = Composed, inferred)]
pub struct CtcLossGrad<V = Var> {
    pub log_probs: V,
    pub label: V,
    pub logits_length: Option<V>,
    pub label_length: Option<V>,
    pub dloss: V,
    #[output]
    pub dlog_probs: V,
    pub blank: i32,
}
impl Kernel for CtcLossGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let lengths = [self.logits_length.as_ref(), self.label_length.as_ref()];
        with_float!(self.log_probs, T => {
            let paths = Paths::<T>::new(&self.log_probs, &self.label, lengths, self.blank)?;
            let (dloss, dlog_probs) = (self.dloss.slice::<T>()?, self.dlog_probs.slice_mut::<T>()?);
            dlog_probs.fill(0.0);
            let rows = (paths.steps + 2) * paths.states;
            cx.scratch(dloss.len() * rows, |scratch| {
                cx.try_chunks_mut(scratch, rows, &mut [(); 0], |i, rows, _| {
                    let row = paths.row(i)?;
                    if row.is_possible {
                        row.occupancy(rows);
                    }
                    Ok(())
                })?;
                for (i, (dloss, rows)) in dloss.iter().zip(scratch.chunks(rows)).enumerate() {
                    let row = paths.row(i)?;
                    for t in 0..if row.is_possible { row.steps } else { 0 } {
                        for (state, occupancy) in nth(rows, t, paths.states)[..row.states].iter().enumerate() {
                            dlog_probs[row.place(t, state)] += -*dloss * T::of(*occupancy);
                        }
                    }
                }
                Ok(())
            })
        })
    }

    fn scratch_bytes(&self, _: usize) -> usize {
        let steps = self.log_probs.dims()[0] + 2;
        steps * self.dloss.numel() * states(&self.label) * size_of::<f64>()
    }
}

/// The loss of connectionist temporal classification, with probabilities from a softmax:
/// `loss = ctc_loss(log_softmax(logits))`.
#[register_op(grad = Composed, composed)]
pub struct Warpctc<V = Var> {
    /// `[steps, batch, classes]`.
    #[input]
    pub logits: V,
    /// Classes, int64 or int32, `[batch, longest]`; none is the blank. What follows a label is not read.
    #[input(checked)]
    pub label: V,
    /// The number of steps of each row, int64 or int32, `[batch]`; all steps if absent.
    #[input(checked)]
    pub logits_length: Option<V>,
    /// The number of classes of each label, int64 or int32, `[batch]`; `longest` if absent.
    #[input(checked)]
    pub label_length: Option<V>,
    /// `[batch, 1]`.
    #[output]
    pub loss: V,
    /// The class of the blank.
    #[attr(default = 0)]
    pub blank: i32,
}
impl Infer for Warpctc<Meta> {
    fn infer(&mut self) -> Result<()> {
        let lengths = [self.logits_length.as_ref(), self.label_length.as_ref()];
        let dims = infer_ctc(&self.logits, &self.label, lengths, self.blank)?;
        self.loss.set(self.logits.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        flops(&self.logits, &self.label)
    }
}
impl Composition for Warpctc<Expr> {
    fn compose(&mut self) {
        self.loss = emit(CtcLoss {
            log_probs: (&self.logits.log_softmax(2)).into(),
            label: (&self.label).into(),
            logits_length: self.logits_length.as_ref().map(Into::into),
            label_length: self.label_length.as_ref().map(Into::into),
            loss: New,
            blank: self.blank,
        })
        .loss;
    }
}
autobwd::samples!(
    Warpctc,
    [
        warpctc(uniform([5, 2, 3]), given([2, 4], [1.0, 2.0, 1.0, 2.0, 2.0, 1.0, 2.0, 1.0]), FULL, 0),
        warpctc(
            between(-9.0, 9.0, [4, 2, 3]),
            given([2, 2], [1.0, 1.0, 0.0, 0.0]),
            lengths([4.0, 2.0], [2.0, 1.0]),
            2
        ),
        warpctc(uniform([3, 2, 4]), given([2, 1], [1.0, 5.0]), FULL, 0)
            .fails("`Label`: 5 is not within 0..4"),
    ]
);

fn warpctc(logits: Draw, label: Draw, lengths: [Option<Draw>; 2], blank: i32) -> Warpctc<Draw> {
    let [logits_length, label_length] = lengths;
    Warpctc { logits, label: label.of(DType::I64), logits_length, label_length, loss: out(), blank }
}

/// The dimensions of the losses.
fn infer_ctc(x: &Meta, label: &Meta, lengths: [Option<&Meta>; 2], blank: i32) -> Result<Dims> {
    x.float()?;
    x.require(x.rank() == 3, || "dimensions [steps, batch, classes] are needed".into())?;
    are_numbers(label)?;
    let batch = x.dims[1];
    label.require(label.rank() == 2 && label.dims[0].agrees(batch), || {
        format!("classes of {batch} labels are needed")
    })?;
    for length in lengths.into_iter().flatten() {
        are_numbers(length)?;
        length.require(length.rank() == 1 && length.dims[0].agrees(batch), || {
            format!("{batch} lengths are needed")
        })?;
    }
    let classes = x.dims[2].get();
    if usize::try_from(blank).ok().is_none_or(|blank| classes.is_some_and(|classes| blank >= classes)) {
        return Err(Error::attr("blank", format!("one of {} classes is needed, not {blank}", x.dims[2])));
    }
    Ok([batch, 1.into()].into_iter().collect())
}

fn flops(x: &Meta, label: &Meta) -> Dim {
    let states = Dim::from(2) * label.dims[1] + Dim::from(1);
    Dim::from(FLOPS) * x.dims[0] * x.dims[1] * (states + x.dims[2])
}

/// The states of the longest label.
fn states(label: &Buf<'_>) -> usize {
    2 * label.dims()[1] + 1
}

/// The paths of a batch.
struct Paths<'a, T> {
    log_probs: &'a [T],
    steps: usize,
    batch: usize,
    classes: usize,
    label: &'a Buf<'a>,
    lengths: [Option<&'a Buf<'a>>; 2],
    states: usize,
    blank: usize,
}

/// The paths of a row of the batch.
struct RowPaths<'a, T> {
    paths: &'a Paths<'a, T>,
    row: usize,
    steps: usize,
    states: usize,
    /// Whether there are as many steps as the label needs.
    is_possible: bool,
}

impl<'a, T: KernelFloat> Paths<'a, T> {
    fn new(
        log_probs: &'a Buf<'a>,
        label: &'a Buf<'a>,
        lengths: [Option<&'a Buf<'a>>; 2],
        blank: i32,
    ) -> Result<Paths<'a, T>> {
        let (dims, states) = (log_probs.dims(), states(label));
        let (steps, batch, classes, blank) = (dims[0], dims[1], dims[2], blank as usize);
        Ok(Paths { log_probs: log_probs.slice()?, steps, batch, classes, label, lengths, states, blank })
    }

    fn row(&'a self, row: usize) -> Result<RowPaths<'a, T>> {
        let longest = self.states / 2;
        let length = |which: usize, most: usize| match self.lengths[which] {
            Some(lengths) => place(lengths, row, most + 1),
            None => Ok(most),
        };
        let (steps, length) = (length(0, self.steps)?, length(1, longest)?);
        let (mut needed, mut before) = (length, self.blank);
        for i in row * longest..row * longest + length {
            let class = place(self.label, i, self.classes)?;
            if class == self.blank {
                return Err(Error::data(format!("`{}`: {class} is the blank", self.label.slot())));
            }
            needed += usize::from(class == before);
            before = class;
        }
        Ok(RowPaths { paths: self, row, steps, states: 2 * length + 1, is_possible: needed <= steps })
    }
}

impl<T: KernelFloat> RowPaths<'_, T> {
    /// The class of a state, which has been checked.
    fn class(&self, state: usize) -> usize {
        let paths = self.paths;
        let at = self.row * (paths.states / 2) + state / 2;
        let class = if state.is_multiple_of(2) { None } else { place(paths.label, at, paths.classes).ok() };
        class.unwrap_or(paths.blank)
    }

    /// The offset of the class of a state in a step.
    fn place(&self, t: usize, state: usize) -> usize {
        (t * self.paths.batch + self.row) * self.paths.classes + self.class(state)
    }

    fn log_prob(&self, t: usize, state: usize) -> f64 {
        self.paths.log_probs[self.place(t, state)].into()
    }

    /// Whether a path may go from a state to the one after the next, over a blank.
    fn skips(&self, state: usize) -> bool {
        state % 2 == 1 && state + 2 < self.states && self.class(state) != self.class(state + 2)
    }

    /// Writes the logarithm of the probability of the paths up to a step that end in a state, `t` in row `t % rows`; returns
    /// the logarithm of the probability of all paths.
    fn forward(&self, rows: &mut [f64]) -> f64 {
        let (width, never) = (self.paths.states, f64::NEG_INFINITY);
        let count = rows.len() / width;
        for t in 0..self.steps {
            for state in 0..self.states {
                let before = |back: usize| match (t, state.checked_sub(back)) {
                    (_, None) => never,
                    (0, Some(from)) => {
                        if from == 0 && back < 2 {
                            0.0
                        } else {
                            never
                        }
                    }
                    (_, Some(from)) => rows[(t - 1) % count * width + from],
                };
                let skipped = if state >= 2 && self.skips(state - 2) { before(2) } else { never };
                rows[t % count * width + state] =
                    log_sum([before(0), before(1), skipped]) + self.log_prob(t, state);
            }
        }
        match self.steps {
            0 => 0.0,
            steps => {
                let last = &nth(rows, (steps - 1) % count, width)[..self.states];
                log_sum([
                    last[self.states - 1],
                    if self.states > 1 { last[self.states - 2] } else { never },
                    never,
                ])
            }
        }
    }

    /// Writes the probability, given the label, that a path is in a state in a step, a row for each step; two rows more are
    /// work space.
    fn occupancy(&self, rows: &mut [f64]) {
        let (width, never) = (self.paths.states, f64::NEG_INFINITY);
        let (rows, work) = rows.split_at_mut(self.paths.steps * width);
        if self.steps == 0 {
            return;
        }
        let all = self.forward(rows);
        let (mut after, mut now) = work.split_at_mut(width);
        for t in (0..self.steps).rev() {
            for state in 0..self.states {
                now[state] = if t + 1 == self.steps {
                    if state + 2 < self.states { never } else { 0.0 }
                } else {
                    let next = |ahead: usize| match state + ahead {
                        to if to < self.states => after[to] + self.log_prob(t + 1, to),
                        _ => never,
                    };
                    log_sum([next(0), next(1), if self.skips(state) { next(2) } else { never }])
                };
                let path = &mut rows[t * width + state];
                // Nothing is known of the way of an impossible label.
                *path = if all == never { 0.0 } else { libm::exp(*path + now[state] - all) };
            }
            std::mem::swap(&mut after, &mut now);
        }
    }
}

/// `ln Σ exp(x)`.
fn log_sum(x: [f64; 3]) -> f64 {
    let top = x.into_iter().fold(f64::NEG_INFINITY, f64::max);
    if x == [f64::NEG_INFINITY; 3] {
        top
    } else {
        top + libm::log(x.iter().map(|x| libm::exp(x - top)).sum())
    }
}
