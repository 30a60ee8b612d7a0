//! Cumulative products, and logarithms of cumulative sums of powers.

use autobwd::{
    Buf, Composed, Composition, Cx, DType, Expr, Infer, Kernel, Meta, New, Result, Var,
    check::*,
    emit,
    op::{with_float, with_signed},
    register_op,
    tensor::Element,
};

use crate::{
    Math,
    cumsum::{Cumsum, lanes, summed},
    kernel_helpers::{KernelFloat, PART, wide},
    math::{concat, like, stack},
};

/// Calls `lane(row, first)` for every lane of an output, with the rows of its tensor that are processed together and
/// the lane's first element in them.
fn each_lane<T: Send>(
    cx: &Cx,
    (n, inner): (usize, usize),
    out: &mut [T],
    lane: impl Fn(usize, usize, &mut [T]) + Sync,
) {
    let row = (n * inner).max(1);
    let size = PART.div_ceil(row) * row;
    cx.chunks_mut(out, size, |part, out| {
        for (i, out) in out.chunks_exact_mut(row).enumerate() {
            (0..inner).for_each(|first| lane(part * size + i * row, first, out));
        }
    });
}

/// Numbers that can be multiplied cumulatively.
trait RunningProduct: Element {
    /// The product; integers wrap around.
    fn times(self, other: Self) -> Self;
    const ONE: Self;
}
macro_rules! running {
    ($($t:ty, $one:literal, $times:expr;)*) => {$(
        impl RunningProduct for $t {
            const ONE: $t = $one;
            #[inline(always)]
            fn times(self, other: $t) -> $t {
                let times: fn($t, $t) -> $t = $times;
                times(self, other)
            }
        }
    )*};
}
running! {
    f32, 1.0, |a, b| a * b;
    f64, 1.0, |a, b| a * b;
    i32, 1, i32::wrapping_mul;
    i64, 1, i64::wrapping_mul;
}

/// Cumulative product along an axis: `out[i] = x[0] * … * x[i]`.
#[register_op(grad = CumprodGrad, infallible)]
pub struct Cumprod<V = Var> {
    /// Any shape; products of integers wrap around.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr]
    pub dim: i32,
}
impl Infer for Cumprod<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        if self.x.rank() > 0 || !matches!(self.dim, -1 | 0) {
            self.x.axis("dim", self.dim.into())?;
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for Cumprod<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, inner) = lanes(&self.x, self.dim, false);
        with_signed!(self.x, T => {
            let x = self.x.slice::<T>()?;
            each_lane(cx, (n, inner), self.out.slice_mut::<T>()?, |row, first, out| {
                let mut product = T::ONE;
                for at in (first..).step_by(inner).take(n) {
                    product = product.times(x[row + at]);
                    out[at] = product;
                }
            });
            Ok(())
        })
    }
}
impl Composition for Cumprod<Expr> {
    fn compose(&mut self) {
        let (mut x, rank) = (self.x.clone(), self.x.dims().len() as i32);
        if rank == 0 {
            self.out = x.copy();
            return;
        }
        let axis = self.dim.rem_euclid(rank);
        let Some(len) = x.dims()[axis as usize].get().map(|len| len as i32) else {
            // Of all pairs of positions, the factors are those up to each position.
            let (factors, is_factor) = pairs(&x, axis, false);
            self.out = is_factor.where_cond(&factors, &like(&factors, 1.0)).prod(&[axis + 1]);
            return;
        };
        // Each step doubles the number of factors in every product.
        let mut step = 1;
        while step < len {
            let longer = x.slice(axis, step, len) * x.slice(axis, 0, len - step);
            x = concat(&[&x.slice(axis, 0, step), &longer], axis);
            step *= 2;
        }
        self.out = x;
    }
}
autobwd::samples!(
    Cumprod,
    [
        Cumprod { x: uniform([5]), out: out(), dim: 0 },
        Cumprod { x: uniform([2, 3]), out: out(), dim: -1 },
        Cumprod { x: positive([2, 3, 4]), out: out(), dim: 1 },
        Cumprod { x: positive([3, 2]), out: out(), dim: -2 },
        Cumprod { x: given([2, 5], [2.0, 0.0, 3.0, -0.5, 2.0, 0.0, 3.0, 0.0, 4.0, 0.5]), out: out(), dim: 1 },
        Cumprod { x: positive([]), out: out(), dim: -1 },
        Cumprod { x: positive([0, 3]), out: out(), dim: 0 },
        Cumprod { x: positive([3, 0]), out: out(), dim: 0 },
        Cumprod { x: given([2, 2], [65536.0, 65536.0, -3.0, 7.0]).of(DType::I32), out: out(), dim: 1 },
        Cumprod { x: integers_below(9, [3, 2]), out: out(), dim: 0 },
        Cumprod { x: uniform([2, 3]), out: out(), dim: 2 }.fails("attribute `dim` = 2"),
        Cumprod { x: integers_below(2, [2]).of(DType::Bool), out: out(), dim: 0 }
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

/// `dx[i]` = the sum of `dout[j]` times the other factors of `out[j]`, for `j` from `i`.
#[register_op(grad_of = Cumprod, grad = Composed, inferred, infallible)]
pub struct CumprodGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub dim: i32,
}
impl Kernel for CumprodGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, inner) = lanes(&self.x, self.dim, false);
        with_float!(self.dout, T => {
            let (x, out, dout) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.dout.slice::<T>()?);
            each_lane(cx, (n, inner), self.dx.slice_mut::<T>()?, |row, first, dx| {
                let at = |i: usize| row + first + i * inner;
                let zero = (0..n).find(|i| x[at(*i)] == 0.0).unwrap_or(n);
                // Up to the first 0, the other factors of a product are its quotient by the factor.
                let mut sum = 0.0;
                for i in (0..zero).rev() {
                    sum += wide(dout[at(i)]) * wide(out[at(i)]);
                    dx[first + i * inner] = T::of(sum / wide(x[at(i)]));
                }
                if zero == n {
                    return;
                }
                // The derivative by that 0 is the product of the others, up to the next 0; all later ones are 0.
                let mut product = if zero > 0 { wide(out[at(zero - 1)]) } else { 1.0 };
                let mut sum = product * wide(dout[at(zero)]);
                for i in zero + 1..n {
                    product *= wide(x[at(i)]);
                    sum += product * wide(dout[at(i)]);
                    dx[first + i * inner] = T::of(0.0);
                }
                dx[first + zero * inner] = T::of(sum);
            });
            Ok(())
        })
    }
}

/// For each position along an axis, of unknown length, all elements along a new axis after it, and whether they come no
/// later than the position; no earlier, if `reverse`.
fn pairs(x: &Expr, axis: i32, reverse: bool) -> (Expr, Expr) {
    let ones = like(x, 1.0);
    let number = Cumsum { x: (&ones).into(), out: New, axis, flatten: false, exclusive: false, reverse };
    let number = emit(number).out;
    let elements = x.unsqueeze(&[axis]) * ones.unsqueeze(&[axis + 1]);
    (elements, number.unsqueeze(&[axis]).less_equal(&number.unsqueeze(&[axis + 1])))
}

/// Logarithm of the cumulative sum of powers along an axis: `out[i] = ln(exp(x[0]) + … + exp(x[i]))`.
#[register_op(grad = LogcumsumexpGrad, infallible)]
pub struct Logcumsumexp<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape as `x`; one dimension with all elements if `flatten`.
    #[output]
    pub out: V,
    /// The dimension; negative counts from the end.
    #[attr(default = -1)]
    pub axis: i32,
    /// Sum over all elements in memory order; `axis` is ignored.
    #[attr(default = false)]
    pub flatten: bool,
    /// Leave `x[i]` out of its sum; the logarithm of the first, which is empty, is the lowest number.
    #[attr(default = false)]
    pub exclusive: bool,
    /// Sum from the end.
    #[attr(default = false)]
    pub reverse: bool,
}
impl Infer for Logcumsumexp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        summed(&self.x, self.axis, self.flatten, &mut self.out)
    }
}
impl Kernel for Logcumsumexp<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, inner) = lanes(&self.x, self.axis, self.flatten);
        let (exclusive, reverse) = (self.exclusive, self.reverse);
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            each_lane(cx, (n, inner), self.out.slice_mut::<T>()?, |row, first, out| {
                let mut sum = f64::NEG_INFINITY;
                for i in 0..n {
                    let at = first + if reverse { n - 1 - i } else { i } * inner;
                    let before = sum;
                    sum = log_add(sum, wide(x[row + at]));
                    out[at] = match (exclusive, i) {
                        (true, 0) => T::MIN,
                        (true, _) => T::of(before),
                        (false, _) => T::of(sum),
                    };
                }
            });
            Ok(())
        })
    }
}

/// `ln(exp(a) + exp(b))`
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    // The difference of two infinities is NaN.
    if low == high { high + std::f64::consts::LN_2 } else { high + libm::log1p(libm::exp(low - high)) }
}
impl Composition for Logcumsumexp<Expr> {
    fn compose(&mut self) {
        let x = if self.flatten { self.x.flatten(0, -1) } else { self.x.clone() };
        let rank = x.dims().len() as i32;
        if rank == 0 {
            self.out = if self.exclusive { lowest(&x) } else { x.copy() };
            return;
        }
        let axis = if self.flatten { 0 } else { self.axis.rem_euclid(rank) };
        let logs = match x.dims()[axis as usize].get() {
            Some(len) => self.scanned(x, axis, len as i32),
            None => self.paired(&x, axis),
        };
        self.out = if self.exclusive { self.shifted(&logs) } else { logs };
    }
}
/// The lowest finite number in the shape of `x`.
fn lowest(x: &Expr) -> Expr {
    let value = if x.dtype().arithmetic() == DType::F32 { f32::MIN.into() } else { f64::MIN };
    like(x, value)
}
impl Logcumsumexp<Expr> {
    /// The logarithms of the sums of the first `len` powers: each pass doubles the number of terms. Every sum subtracts a
    /// term of its own, so that small ones do not vanish next to a large element elsewhere.
    fn scanned(&self, mut x: Expr, axis: i32, len: i32) -> Expr {
        let mut step = 1;
        while step < len {
            let rest = len - step;
            let sums = stack(&[&x.slice(axis, 0, rest), &x.slice(axis, step, len)], 0).logsumexp(&[0]);
            x = match self.reverse {
                true => concat(&[&sums, &x.slice(axis, rest, len)], axis),
                false => concat(&[&x.slice(axis, 0, step), &sums], axis),
            };
            step *= 2;
        }
        x
    }

    /// The same along an axis of unknown length, from all pairs of positions.
    fn paired(&self, x: &Expr, axis: i32) -> Expr {
        let (terms, is_term) = pairs(x, axis, self.reverse);
        is_term.where_cond(&terms, &like(&terms, f64::NEG_INFINITY)).logsumexp(&[axis + 1])
    }

    /// The results without `x[i]`: each is that of the previous position, the first one the lowest number.
    fn shifted(&self, logs: &Expr) -> Expr {
        let axis = if self.flatten { 0 } else { self.axis };
        let first = lowest(&logs.slice(axis, 0, 1));
        match self.reverse {
            true => concat(&[&logs.slice(axis, 1, i32::MAX), &first], axis),
            false => concat(&[&first, &logs.slice(axis, 0, -1)], axis),
        }
    }
}
autobwd::samples!(
    Logcumsumexp,
    [
        logcumsumexp(uniform([5]), 0),
        logcumsumexp(uniform([2, 3]), -1),
        Logcumsumexp { reverse: true, ..logcumsumexp(uniform([2, 3, 4]), 1) },
        Logcumsumexp { flatten: true, ..logcumsumexp(uniform([2, 3]), 0) },
        // The lowest number is that of the dtype.
        Logcumsumexp { exclusive: true, ..logcumsumexp(uniform([2, 3]).of(DType::F64), 0) },
        Logcumsumexp { exclusive: true, reverse: true, ..logcumsumexp(uniform([2, 3]).of(DType::F64), -1) },
        logcumsumexp(given([3], [-20.0, 1.0, 1.0]), 0),
        logcumsumexp(given([2, 2], [-1000.0, 0.0, 0.5, -1000.0]), 1),
        Logcumsumexp { reverse: true, ..logcumsumexp(given([3], [0.0, -1000.0, -1000.5]), 0) },
        logcumsumexp(uniform([]), 0),
        logcumsumexp(uniform([3, 2]), 0),
        logcumsumexp(uniform([2, 3]), 2).fails("attribute `axis` = 2"),
        logcumsumexp(integers_below(9, [2]), 0).fails("`X`: floating point numbers are needed"),
    ]
);

fn logcumsumexp(x: Draw, axis: i32) -> Logcumsumexp<Draw> {
    Logcumsumexp { x, out: out(), axis, flatten: false, exclusive: false, reverse: false }
}

/// `dx[i]` = the sum of `dout[j] * exp(x[i] - out[j])` for all `j` whose sums contain `x[i]`.
#[register_op(grad_of = Logcumsumexp, grad = Composed, inferred, infallible)]
pub struct LogcumsumexpGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub axis: i32,
    pub flatten: bool,
    pub exclusive: bool,
    pub reverse: bool,
}
impl Kernel for LogcumsumexpGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let (n, inner) = lanes(&self.x, self.axis, self.flatten);
        let (exclusive, reverse) = (self.exclusive, self.reverse);
        with_float!(self.dout, T => {
            let (x, out, dout) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.dout.slice::<T>()?);
            each_lane(cx, (n, inner), self.dx.slice_mut::<T>()?, |row, first, dx| {
                // `rest` is the sum of `dout[j] * exp(log - out[j])`; sums only grow, so no power exceeds 1.
                let (mut rest, mut log) = (0.0, 0.0);
                for i in (0..n).rev() {
                    let at = first + if reverse { n - 1 - i } else { i } * inner;
                    let (x, out, dout) = (wide(x[row + at]), wide(out[row + at]), wide(dout[row + at]));
                    if exclusive {
                        dx[at] = T::of(if rest == 0.0 { 0.0 } else { rest * libm::exp(x - log) });
                    }
                    rest = if rest == 0.0 { dout } else { dout + rest * libm::exp(out - log) };
                    log = out;
                    if !exclusive {
                        dx[at] = T::of(rest * libm::exp(x - log));
                    }
                }
            });
            Ok(())
        })
    }
}
