//! Softmax and cross entropy.

use autobwd_ops::{
    loss::{CrossEntropy, CrossEntropyGrad, SoftmaxWithCrossEntropy, SoftmaxWithCrossEntropyGrad},
    softmax::{LogSoftmax, LogSoftmaxGrad, Softmax, SoftmaxGrad},
};

use super::prelude::*;

family!(
    CrossEntropy,
    CrossEntropyGrad,
    LogSoftmax,
    LogSoftmaxGrad,
    Softmax,
    SoftmaxGrad,
    SoftmaxWithCrossEntropy,
    SoftmaxWithCrossEntropyGrad
);

/// A scalar as a vector, so that it has the axis 0.
fn with_axis(x: &Hlo) -> Hlo {
    if x.rank() == 0 { x.reshape(&[1]) } else { x.clone() }
}

/// Exponentials of the differences to the largest element along an axis, their sum in all positions, and the differences.
fn exponentials(x: &Hlo, axis: usize) -> (Hlo, Hlo, Hlo) {
    let differences = x - x.reduce_spread(Reduction::Max, &[axis]);
    let exp = differences.exp();
    let sum = exp.reduce_spread(Reduction::Sum, &[axis]);
    (exp, sum, differences)
}

fn softmax(x: &Hlo, axis: usize) -> Hlo {
    let (exp, sum, _) = exponentials(x, axis);
    exp / sum
}

fn log_softmax(x: &Hlo, axis: usize) -> Hlo {
    let (_, sum, differences) = exponentials(x, axis);
    differences - sum.log()
}

impl Lower for Softmax<Hlo> {
    fn lower(&mut self) {
        self.out = softmax(&with_axis(&self.x), self.x.axis(self.axis));
    }
}
impl Lower for SoftmaxGrad<Hlo> {
    fn lower(&mut self) {
        let (out, dout, axis) = (with_axis(&self.out), with_axis(&self.dout), self.out.axis(self.axis));
        let sum = (&out * &dout).reduce_spread(Reduction::Sum, &[axis]);
        self.dx = (dout - sum) * out;
    }
}
impl Lower for LogSoftmax<Hlo> {
    fn lower(&mut self) {
        self.out = log_softmax(&with_axis(&self.x), self.x.axis(self.axis));
    }
}
impl Lower for LogSoftmaxGrad<Hlo> {
    fn lower(&mut self) {
        let (out, dout, axis) = (with_axis(&self.out), with_axis(&self.dout), self.out.axis(self.axis));
        let sum = dout.reduce_spread(Reduction::Sum, &[axis]);
        self.dx = dout - out.exp() * sum;
    }
}

/// Class indices of the lanes along an axis.
struct HotLabels {
    /// Where the class is that of the label, unless the lane is ignored.
    hot: Hlo,
    /// By lane, without the axis: whether it counts.
    counts: Hlo,
}

impl HotLabels {
    fn of(label: &Hlo, of: &Hlo, axis: usize, ignored: i32) -> HotLabels {
        let others: Vec<usize> = (0..of.rank()).filter(|i| *i != axis).collect();
        let lanes: Vec<usize> = others.iter().map(|i| of.dims()[*i]).collect();
        let label = label.reshape(&lanes);
        let counts = label.not_equal(&label.full_like(f64::from(ignored)));
        let hot = label.one_hot(of.dims(), axis, &others).and(&counts.broadcast(of.dims(), &others));
        HotLabels { hot, counts }
    }

    /// `value` at the labels, 0 elsewhere.
    fn picked(&self, value: &Hlo) -> Hlo {
        self.hot.select(value, &value.full_like(0.0))
    }
}

/// `−Σ label * log`; without weight, the logarithm of 0 does not count.
fn soft_loss(label: &Hlo, log: &Hlo, axis: usize) -> Hlo {
    let zero = label.full_like(0.0);
    -label.equal(&zero).select(&zero, &(label * log)).sum(&[axis])
}

impl Lower for CrossEntropy<Hlo> {
    fn lower(&mut self) {
        let axis = self.x.axis(-1);
        self.y = match self.soft_label {
            true => soft_loss(&self.label, &self.x.log(), axis),
            false => -HotLabels::of(&self.label, &self.x, axis, self.ignore_index)
                .picked(&self.x.log())
                .sum(&[axis]),
        };
    }
}
impl Lower for CrossEntropyGrad<Hlo> {
    fn lower(&mut self) {
        let (axis, zero) = (self.x.axis(-1), self.x.full_like(0.0));
        let dy = self.dy.spread(self.x.dims(), &[axis]);
        // Probabilities without weight, perhaps 0, do not count.
        self.dx = match self.soft_label {
            true => self.label.equal(&zero).select(&zero, &(-(dy * &self.label) / &self.x)),
            false => HotLabels::of(&self.label, &self.x, axis, self.ignore_index).picked(&(-dy / &self.x)),
        };
    }
}

impl Lower for SoftmaxWithCrossEntropy<Hlo> {
    fn lower(&mut self) {
        let axis = self.logits.axis(self.axis);
        let log = if self.use_softmax { log_softmax(&self.logits, axis) } else { self.logits.log() };
        self.softmax = if self.use_softmax { softmax(&self.logits, axis) } else { self.logits.clone() };
        self.loss = match self.soft_label {
            true => soft_loss(&self.label, &log, axis),
            false => {
                -HotLabels::of(&self.label, &self.logits, axis, self.ignore_index).picked(&log).sum(&[axis])
            }
        };
    }
}
impl Lower for SoftmaxWithCrossEntropyGrad<Hlo> {
    fn lower(&mut self) {
        let axis = self.softmax.axis(self.axis);
        let (p, zero) = (&self.softmax, self.softmax.full_like(0.0));
        let dloss = self.dloss.spread(p.dims(), &[axis]);
        let each: Hlo = match (self.use_softmax, self.soft_label) {
            // Labels need not add up to 1.
            (true, true) => p * self.label.reduce_spread(Reduction::Sum, &[axis]) - &self.label,
            (true, false) => {
                let labels = HotLabels::of(&self.label, p, axis, self.ignore_index);
                let counts = labels.counts.spread(p.dims(), &[axis]);
                counts.select(&(p - labels.hot.convert(p.dtype())), &zero)
            }
            (false, true) => self.label.equal(&zero).select(&zero, &(-(&self.label / p))),
            (false, false) => {
                HotLabels::of(&self.label, p, axis, self.ignore_index).picked(&(p.full_like(-1.0) / p))
            }
        };
        self.dlogits = each * dloss;
    }
}
