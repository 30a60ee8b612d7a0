//! Logits of a linear layer, a tile of rows and classes at a time.

use std::ops::Range;

use autobwd::{
    Cx, Result,
    op::{Factor, LaneOf, Mat, Strided, VectorLoops, map_lanes},
};

use super::ClassLabels;
use crate::{
    kernel_helpers::{KernelFloat, nth},
    simd_loops::{largest, sum},
};

/// Rows of a tile.
const ROWS: usize = 256;
/// The most classes of a tile.
const CLASSES: usize = 2048;
/// Rows, or classes of a bias, that a worker goes through at a time.
const PART: usize = 16;

/// A linear layer whose outputs are logits, which are computed in the dtype of sums of its factors.
pub(super) struct LinearLogits<'a, X> {
    pub(super) rows: usize,
    pub(super) depth: usize,
    pub(super) classes: usize,
    pub(super) x: &'a [X],
    pub(super) weight: &'a [X],
    pub(super) bias: Option<&'a [X]>,
    /// Whether the weight is `[classes, depth]`.
    pub(super) is_by_class: bool,
}

/// What the loss of a row is made of.
pub(super) struct Targets<'a, X> {
    pub(super) labels: ClassLabels<'a>,
    pub(super) class_weight: Option<&'a [X]>,
    pub(super) smoothing: f64,
    pub(super) z_loss: f64,
}

/// What is known of the logits of a row, after some of its tiles.
#[derive(Clone, Copy)]
struct RowState<T> {
    /// The largest logit.
    top: T,
    /// `Σ exp(logit - top)`
    total: T,
    /// The factor of what was summed before the last tile: its logits may have a larger `top`.
    shrink: T,
    /// The logit of the label.
    hit: T,
    /// `Σ class_weight * logit`
    weighted: T,
}

impl<T: KernelFloat> RowState<T> {
    /// What is subtracted from logits: a row without a finite logit is not shifted.
    fn shift(&self) -> T {
        if self.top == T::of(f64::NEG_INFINITY) { T::of(0.0) } else { self.top }
    }
}

/// The gradient of the logits of a row: `of_share * exp(logit - log_sum) - of_class * class_weight`, less `of_label`
/// for the label.
#[derive(Clone, Copy)]
struct RowFactors<T> {
    log_sum: T,
    of_share: T,
    of_class: T,
    of_label: T,
}

fn tiles(len: usize, tile: usize) -> impl Iterator<Item = Range<usize>> {
    (0..len).step_by(tile).map(move |start| start..len.min(start + tile))
}

impl<X: Factor<Sum = T>, T: KernelFloat> Targets<'_, X> {
    fn weight_of(&self, class: usize) -> T {
        self.class_weight.map_or(T::of(1.0), |weights| weights[class].widened())
    }

    /// The sum of the weights of all classes.
    fn total_weight(&self, classes: usize) -> T {
        match self.class_weight {
            None => T::of(classes as f64),
            Some(weights) => weights.iter().fold(T::of(0.0), |sum, weight| sum + weight.widened()),
        }
    }

    /// The weights of the classes of a tile.
    fn tile_weights<'b>(&self, classes: &Range<usize>, space: &'b mut [T; CLASSES]) -> Option<&'b [T]> {
        let weights = &self.class_weight?[classes.clone()];
        let space = &mut space[..weights.len()];
        space.iter_mut().zip(weights).for_each(|(to, weight)| *to = weight.widened());
        Some(space)
    }

    fn loss(&self, row: usize, log_sum: T, state: RowState<T>, [classes, total_weight]: [T; 2]) -> T {
        let Some(class) = self.labels.class(row) else { return T::of(0.0) };
        let mut loss = T::of(1.0 - self.smoothing) * self.weight_of(class) * (log_sum - state.hit);
        if self.smoothing > 0.0 {
            loss += T::of(self.smoothing) / classes * (total_weight * log_sum - state.weighted);
        }
        if self.z_loss > 0.0 {
            loss += T::of(self.z_loss) * log_sum * log_sum;
        }
        loss
    }

    fn factors(
        &self,
        row: usize,
        log_sum: T,
        [dloss, dlog_sum]: [T; 2],
        [classes, total_weight]: [T; 2],
    ) -> RowFactors<T> {
        let zero = T::of(0.0);
        let Some(class) = self.labels.class(row) else {
            return RowFactors { log_sum, of_share: dlog_sum, of_class: zero, of_label: zero };
        };
        let of_label = dloss * T::of(1.0 - self.smoothing) * self.weight_of(class);
        let of_class = dloss * T::of(self.smoothing) / classes;
        let of_share =
            of_label + of_class * total_weight + dloss * T::of(2.0 * self.z_loss) * log_sum + dlog_sum;
        RowFactors { log_sum, of_share, of_class, of_label }
    }
}

/// Numbers of scratch memory for so many rows and classes.
pub(super) fn scratch_len(rows: usize, classes: usize) -> usize {
    ROWS.min(rows) * CLASSES.min(classes)
}

impl<X: Factor<Sum = T>, T: KernelFloat> LinearLogits<'_, X> {
    fn x_of(&self, rows: &Range<usize>) -> Strided<'_, X> {
        let data = &self.x[rows.start * self.depth..][..rows.len() * self.depth];
        Mat { data, rows: rows.len(), cols: self.depth, transposed: false }.into()
    }

    /// The weight of some classes, `[depth, classes]`.
    fn weight_of(&self, classes: &Range<usize>) -> Strided<'_, X> {
        let part = |first: usize, rows, cols, stride| {
            let data = &self.weight[first..];
            Strided { mat: Mat { data, rows, cols, transposed: false }, stride }
        };
        match self.is_by_class {
            true => part(classes.start * self.depth, classes.len(), self.depth, self.depth).t(),
            false => part(classes.start.min(self.weight.len()), self.depth, classes.len(), self.classes),
        }
    }

    /// The logits of some rows and classes.
    fn compute<'b>(
        &self,
        cx: &Cx,
        rows: &Range<usize>,
        classes: &Range<usize>,
        scratch: &'b mut [T],
    ) -> Result<&'b mut [T]> {
        let len = classes.len();
        let logits = &mut scratch[..rows.len() * len];
        if let Some(bias) = self.bias {
            let bias = &bias[classes.clone()];
            for row in logits.chunks_exact_mut(len) {
                row.iter_mut().zip(bias).for_each(|(logit, bias)| *logit = bias.widened());
            }
        }
        let (x, weight) = (self.x_of(rows), self.weight_of(classes));
        cx.product_strided(logits, len, self.bias.is_some(), x, weight)?;
        Ok(logits)
    }

    /// The losses of rows, the logarithms of the sums of their exponentials, and the gradients of losses with respect to
    /// rows of `x`; empty ones are not wanted.
    ///
    /// The gradients are sums over tiles that are scaled when a larger logit appears, as in attention (Dao et al., 2022):
    /// no logit is computed twice.
    pub(super) fn losses(
        &self,
        cx: &Cx,
        targets: &Targets<'_, X>,
        [loss, log_sum, x_gradient]: [&mut [T]; 3],
    ) -> Result<()> {
        let totals = [T::of(self.classes as f64), targets.total_weight(self.classes)];
        let mut weights = [T::of(0.0); CLASSES];
        x_gradient.fill(T::of(0.0));
        cx.scratch(scratch_len(self.rows, self.classes), |scratch| {
            for rows in tiles(self.rows, ROWS) {
                let [zero, top] = [0.0, f64::NEG_INFINITY].map(T::of);
                let start = RowState { top, total: zero, shrink: zero, hit: zero, weighted: zero };
                let mut states = [start; ROWS];
                let states = &mut states[..rows.len()];
                let gradients = match x_gradient.is_empty() {
                    true => &mut [][..],
                    false => &mut x_gradient[rows.start * self.depth..rows.end * self.depth],
                };
                for classes in tiles(self.classes, CLASSES) {
                    let logits = self.compute(cx, &rows, &classes, scratch)?;
                    let weights = targets.tile_weights(&classes, &mut weights);
                    cx.chunks_mut(states, PART, |part, states| {
                        let (first, logits) =
                            (rows.start + part * PART, &logits[part * PART * classes.len()..]);
                        T::vectorised(Observe { targets, first, classes: &classes, weights, logits, states });
                    });
                    if !gradients.is_empty() {
                        self.add_exponentials(cx, &classes, states, logits, gradients)?;
                    }
                }
                for (row, state) in rows.clone().zip(&*states) {
                    let sum = state.top + state.total.ln();
                    loss[row] = targets.loss(row, sum, *state, totals);
                    log_sum[row] = sum;
                }
                if !gradients.is_empty() {
                    let (first, states, log_sum) = (rows.start, &*states, &log_sum[rows.clone()]);
                    cx.chunks_mut(gradients, PART * self.depth, |part, gradients| {
                        let rows = gradients.chunks_exact_mut(self.depth).enumerate();
                        for (at, gradient) in rows.map(|(at, gradient)| (part * PART + at, gradient)) {
                            let arriving = [T::of(1.0), T::of(0.0)];
                            let factors = targets.factors(first + at, log_sum[at], arriving, totals);
                            self.finish_gradient(targets, first + at, &states[at], &factors, gradient);
                        }
                    });
                }
            }
            Ok(())
        })
    }

    /// Turns a tile of logits into exponentials, and adds their products with the weights of their classes.
    fn add_exponentials(
        &self,
        cx: &Cx,
        classes: &Range<usize>,
        states: &[RowState<T>],
        logits: &mut [T],
        gradients: &mut [T],
    ) -> Result<()> {
        let (len, depth) = (classes.len(), self.depth);
        cx.chunks_mut(logits, PART * len, |part, logits| {
            T::vectorised(Exponentiate { states: &states[part * PART..], logits, len });
        });
        cx.chunks_mut(gradients, PART * depth, |part, gradients| {
            for (gradient, state) in gradients.chunks_exact_mut(depth).zip(&states[part * PART..]) {
                gradient.iter_mut().for_each(|sum| *sum = *sum * state.shrink);
            }
        });
        let exponentials = Mat { data: &*logits, rows: states.len(), cols: len, transposed: false };
        cx.product_strided(gradients, depth, true, exponentials.into(), self.weight_of(classes).t())
    }

    /// Makes the gradient of a loss of the sum of exponentials times weights of classes.
    fn finish_gradient(
        &self,
        targets: &Targets<'_, X>,
        row: usize,
        state: &RowState<T>,
        factors: &RowFactors<T>,
        gradient: &mut [T],
    ) {
        let Some(class) = targets.labels.class(row) else { return gradient.fill(T::of(0.0)) };
        let share = factors.of_share / state.total;
        let (first, stride) = if self.is_by_class { (class * self.depth, 1) } else { (class, self.classes) };
        let weights = self.weight[first..].iter().step_by(stride);
        for (sum, weight) in gradient.iter_mut().zip(weights) {
            *sum = *sum * share - factors.of_label * weight.widened();
        }
    }

    /// The gradients of `x`, weight and bias for those of losses, and perhaps of logarithms of sums; empty ones are not
    /// wanted.
    pub(super) fn gradients(
        &self,
        cx: &Cx,
        targets: &Targets<'_, X>,
        log_sum: &[T],
        (dloss, dlog_sum): (&[T], Option<&[T]>),
        [dx, dweight, dbias]: [&mut [T]; 3],
    ) -> Result<()> {
        let (depth, zero) = (self.depth, T::of(0.0));
        [&mut *dx, &mut *dweight, &mut *dbias].into_iter().for_each(|gradient| gradient.fill(zero));
        let totals = [T::of(self.classes as f64), targets.total_weight(self.classes)];
        let mut weights = [T::of(0.0); CLASSES];
        cx.scratch(scratch_len(self.rows, self.classes), |scratch| {
            for rows in tiles(self.rows, ROWS) {
                let factors = |row: usize| {
                    let arriving = [dloss[row], dlog_sum.map_or(zero, |dlog_sum| dlog_sum[row])];
                    targets.factors(row, log_sum[row], arriving, totals)
                };
                let x = self.x_of(&rows);
                for classes in tiles(self.classes, CLASSES) {
                    let (len, weight) = (classes.len(), self.weight_of(&classes));
                    let dlogits = self.compute(cx, &rows, &classes, scratch)?;
                    let weights = targets.tile_weights(&classes, &mut weights);
                    cx.chunks_mut(dlogits, PART * len, |part, logits| {
                        let first = rows.start + part * PART;
                        let (labels, classes, factors) = (targets.labels, &classes, &factors);
                        T::vectorised(Differentiate { labels, first, classes, weights, logits, factors });
                    });
                    let dlogits = &*dlogits;
                    let of_logits: Strided<'_, T> =
                        Mat { data: dlogits, rows: rows.len(), cols: len, transposed: false }.into();
                    if !dx.is_empty() {
                        cx.product_strided(
                            &mut dx[rows.start * depth..],
                            depth,
                            true,
                            of_logits,
                            weight.t(),
                        )?;
                    }
                    if !dweight.is_empty() && self.is_by_class {
                        let to = &mut dweight[classes.start * depth..];
                        cx.product_strided(to, depth, true, of_logits.t(), x)?;
                    } else if !dweight.is_empty() {
                        let to = &mut dweight[classes.start..];
                        cx.product_strided(to, self.classes, true, x.t(), of_logits)?;
                    }
                    if !dbias.is_empty() {
                        cx.chunks_mut(&mut dbias[classes.clone()], CLASSES / PART, |part, dbias| {
                            for row in dlogits.chunks_exact(len) {
                                let row = &row[part * (CLASSES / PART)..];
                                dbias.iter_mut().zip(row).for_each(|(sum, x)| *sum += *x);
                            }
                        });
                    }
                }
            }
            Ok(())
        })
    }
}

/// Adds a tile of logits to what is known of its rows.
struct Observe<'a, X, T> {
    targets: &'a Targets<'a, X>,
    /// The first row.
    first: usize,
    classes: &'a Range<usize>,
    /// The weights of these classes.
    weights: Option<&'a [T]>,
    logits: &'a [T],
    states: &'a mut [RowState<T>],
}
impl<X: Factor<Sum = T>, T: KernelFloat> VectorLoops<T> for Observe<'_, X, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Observe { targets, first, classes, weights, logits, states } = self;
        for (at, state) in states.iter_mut().enumerate() {
            let logits = nth(logits, at, classes.len());
            let new = largest::<T, F>(logits).get();
            let before = state.top;
            state.top = if new > before { new } else { before };
            let shift = state.shift();
            let lanes = F::new(shift);
            let added = sum([logits], |[x]: [F; 1]| (x - lanes).exp()).get();
            state.shrink = (before - shift).exp();
            state.total = state.total * state.shrink + added;
            if let Some(class) = targets.labels.class(first + at).filter(|class| classes.contains(class)) {
                state.hit = logits[class - classes.start];
            }
            if targets.smoothing > 0.0 {
                state.weighted += match weights {
                    None => sum([logits], |[x]: [F; 1]| x).get(),
                    Some(weights) => sum([weights, logits], |[weight, x]: [F; 2]| weight * x).get(),
                };
            }
        }
    }
}

/// Turns rows of logits into exponentials.
struct Exponentiate<'a, T> {
    states: &'a [RowState<T>],
    logits: &'a mut [T],
    /// The number of logits of a row.
    len: usize,
}
impl<T: KernelFloat> VectorLoops<T> for Exponentiate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Exponentiate { states, logits, len } = self;
        for (logits, state) in logits.chunks_exact_mut(len).zip(states) {
            let shift = F::new(state.shift());
            map_lanes([], [logits], |[], [x]: [F; 1]| [(x - shift).exp()]);
        }
    }
}

/// Turns a tile of logits into their gradients.
struct Differentiate<'a, T, R> {
    labels: ClassLabels<'a>,
    /// The first row.
    first: usize,
    classes: &'a Range<usize>,
    /// The weights of these classes.
    weights: Option<&'a [T]>,
    logits: &'a mut [T],
    /// The factors of a row.
    factors: &'a R,
}
impl<T: KernelFloat, R: Fn(usize) -> RowFactors<T>> VectorLoops<T> for Differentiate<'_, T, R> {
    type Output = ();

    #[inline(always)]
    fn run<F: LaneOf<T>>(self) {
        let Differentiate { labels, first, classes, weights, logits, factors } = self;
        for (row, logits) in (first..).zip(logits.chunks_exact_mut(classes.len())) {
            let of_row = factors(row);
            let [log_sum, of_share, of_class] =
                [of_row.log_sum, of_row.of_share, of_row.of_class].map(F::new);
            match weights {
                Some(weights) => {
                    map_lanes([weights], [&mut *logits], |[weight]: [F; 1], [x]| {
                        [of_share * (x - log_sum).exp() - of_class * weight]
                    });
                }
                None => map_lanes([], [&mut *logits], |[], [x]: [F; 1]| {
                    [of_share * (x - log_sum).exp() - of_class]
                }),
            }
            if let Some(class) = labels.class(row).filter(|class| classes.contains(class)) {
                let to = &mut logits[class - classes.start];
                *to = *to - of_row.of_label;
            }
        }
    }
}
