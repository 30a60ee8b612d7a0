//! Evenly spaced numbers: `range`, `linspace`, and `logspace`, whose exponents are.

use autobwd::{
    Buf, Composition, Cx, DType, Dims, Error, ErrorKind, Expr, Infer, Kernel, Meta, New, NoGrad, Result, Var,
    check::*,
    emit,
    op::{with_dtype, with_signed},
    operators::constant_int,
    register_op,
    tensor::Dim,
};

use crate::{
    Math,
    kernel_helpers::{AnyNumber, ConvertElement},
    math::{DimExpr, positions},
};

/// Numbers from a start up to an end, exclusive: `out[i] = start + step · i`.
#[register_op(grad = NoGrad, infallible, primitive)]
pub struct Range<V = Var> {
    /// The first number, one element of a signed or floating-point dtype.
    #[input(constant)]
    pub start: V,
    /// The bound, which is not reached; same dtype, one element.
    #[input(constant)]
    pub end: V,
    /// The distance of the numbers, not 0; same dtype, one element.
    #[input(constant)]
    pub step: V,
    /// `[n]`, same dtype: each number is the sum of the one before and `step`.
    #[output]
    pub out: V,
}
impl Infer for Range<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.start.signed()?;
        for x in [&self.start, &self.end, &self.step] {
            x.same_dtype(&self.start)?;
            x.one_element()?;
        }
        let of = |x: &Meta| x.constant().and_then(|elements| elements.first().copied());
        let count = match (of(&self.start), of(&self.end), of(&self.step)) {
            (Some(start), Some(end), Some(step)) => self.count(start, end, step)?.into(),
            _ => Dim::UNKNOWN,
        };
        self.out.set(self.start.dtype, [count].into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Range<Meta> {
    fn count(&self, start: f64, end: f64, step: f64) -> Result<usize> {
        let refuse = |x: &Meta, text: String| Error::new(ErrorKind::Shape, format!("`{}`: {text}", x.slot()));
        let numbers = [(&self.start, start), (&self.end, end), (&self.step, step)];
        if let Some((x, number)) = numbers.iter().find(|(_, x)| !x.is_finite()) {
            return Err(refuse(x, format!("{number} is not finite")));
        }
        if step == 0.0 || (end - start) * step < 0.0 {
            return Err(refuse(&self.step, format!("{step} does not lead from {start} to {end}")));
        }
        // In the precision of the dtype, as in the reference.
        let count = match self.start.dtype.arithmetic() {
            DType::F32 => f64::from(((end as f32 - start as f32) / step as f32).abs().ceil()),
            DType::F64 => ((end - start) / step).abs().ceil(),
            _ => {
                let (start, end, step) = (start as i128, end as i128, step as i128);
                return usize::try_from((end - start).unsigned_abs().div_ceil(step.unsigned_abs()))
                    .map_err(|_| refuse(&self.end, format!("{end} is too far from {start}")));
            }
        };
        // A dimension that is too large is rejected later.
        Ok(count as usize)
    }
}
impl Kernel for Range<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let of = |x: &Buf<'_>| x.constant().and_then(|elements| elements.first().copied());
        let (start, step) = (of(&self.start), of(&self.step));
        let unknown = || Error::new(ErrorKind::Shape, "the numbers of the range are not known");
        let (start, step) = (start.ok_or_else(unknown)?, step.ok_or_else(unknown)?);
        with_signed!(self.out, T => {
            let [mut next, step] = [start, step].map(|x| T::narrow(AnyNumber::Float(x)));
            for (i, out) in self.out.slice_mut::<T>()?.iter_mut().enumerate() {
                next = if i == 0 { next } else { next + step };
                *out = next;
            }
            Ok(())
        })
    }
}
autobwd::samples!(
    Range,
    [
        range(DType::I64, [0.0, 5.0, 2.0]),
        range(DType::I32, [5.0, -2.0, -3.0]),
        range(DType::I64, [3.0, 3.0, 1.0]),
        range(DType::F32, [0.0, 0.9, 0.3]),
        range(DType::F64, [1.0, -1.0, -0.7]),
        range(DType::F64, [1.0, 0.0, 0.5]).fails("`Step`: 0.5 does not lead from 1 to 0"),
        range(DType::I64, [0.0, 5.0, 0.0]).fails("`Step`: 0 does not lead from 0 to 5"),
        range(DType::F64, [0.0, f64::INFINITY, 1.0]).fails("`End`: inf is not finite"),
        range(DType::F64, [f64::NAN, 3.0, 1.0]).fails("`Start`: NaN is not finite"),
        range(DType::F64, [0.0, 1e300, 1.0]).fails("is unknown or too large"),
        range(DType::U8, [0.0, 3.0, 1.0]).fails("`Start`: signed or floating point numbers are needed"),
        Range { end: integers(&[3]), ..range(DType::I32, [0.0, 3.0, 1.0]) }
            .fails("`End`: dtype int64 does not match int32 of `Start`"),
        Range { step: integers(&[1, 2]), ..range(DType::I64, [0.0, 3.0, 1.0]) }
            .fails("`Step`: one element is needed"),
    ]
);

fn range(dtype: DType, numbers: [f64; 3]) -> Range<Draw> {
    let [start, end, step] = numbers.map(|x| given([1], [x]).of(dtype));
    Range { start, end, step, out: out() }
}

/// Numbers from a start to a stop, both included: `out[i] = start + (stop - start) · i / (num - 1)`.
#[register_op(grad = NoGrad, infallible)]
pub struct Linspace<V = Var> {
    /// The first number, one element of a signed or floating-point dtype.
    #[input]
    pub start: V,
    /// The last number, one element of a signed or floating-point dtype.
    #[input]
    pub stop: V,
    /// The number of elements, at least 1: int32 or int64, one element.
    #[input(constant)]
    pub num: V,
    /// `[num]`, of the dtype of the attribute; one number is `start`.
    #[output]
    pub out: V,
    /// Element type, signed or floating-point.
    #[attr]
    pub dtype: DType,
}
impl Infer for Linspace<Meta> {
    fn infer(&mut self) -> Result<()> {
        for x in [&self.start, &self.stop] {
            x.signed()?;
            x.one_element()?;
        }
        let num = match constant_int(Some(&self.num), 0)? {
            Some(num) if num < 1 => {
                let text = format!("`Num`: at least 1 is needed, not {num}");
                return Err(Error::new(ErrorKind::Shape, text));
            }
            num => num.and_then(|num| usize::try_from(num).ok()).map_or(Dim::UNKNOWN, Dim::from),
        };
        self.out.set(self.dtype, [num].into_iter().collect::<Dims>());
        self.out.signed()
    }
}
impl Kernel for Linspace<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let number = |x: &Buf<'_>| with_dtype!(x.dtype(), T => Ok::<_, Error>(x.slice::<T>()?[0].widen()));
        let (start, stop) = (number(&self.start)?, number(&self.stop)?);
        with_signed!(self.out, T => {
            let ends = [start, stop].map(T::narrow);
            let [start, stop] = ends.map(|x| match x.widen() {
                AnyNumber::Int(x) => x as f64,
                AnyNumber::Float(x) => x,
            });
            let out = self.out.slice_mut::<T>()?;
            let last = out.len().saturating_sub(1);
            let step = if last == 0 { 0.0 } else { (stop - start) / last as f64 };
            // The second half from the end, as in the reference, so that the last number is exact.
            let half = if last == 0 { 1 } else { out.len() / 2 };
            for (i, out) in out.iter_mut().enumerate() {
                let x = if i < half { start + step * i as f64 } else { stop - step * (last - i) as f64 };
                *out = T::narrow(AnyNumber::Float(x));
            }
            Ok(())
        })
    }
}
impl Composition for Linspace<Expr> {
    fn compose(&mut self) {
        // First in the dtype of the result.
        let [start, stop] =
            [&self.start, &self.stop].map(|x| x.reshape(&[1]).cast(self.dtype).cast(DType::F64));
        let num = DimExpr::only_element(&self.num);
        let last = &num - 1;
        let number = |n: &DimExpr| n.number(self.num.builder());
        let step = (&stop - &start) / number(&last.max(1)).cast(DType::F64);
        let position = positions(self.num.builder(), &num);
        let from_end = (number(&last) - &position).cast(DType::F64);
        // The second half from the end, so that the last number is exact.
        let is_first = position.less_than(&number(&(num / 2).max(1)));
        let numbers = start + position.cast(DType::F64) * &step;
        self.out = is_first.where_cond(&numbers, &(stop - from_end * step)).cast(self.dtype);
    }
}
autobwd::samples!(
    Linspace,
    [
        linspace([-1.0, 2.0], 5, DType::F64).not_a_derivative(NO_GRADIENT),
        linspace([-1.0, 2.0], 4, DType::F32).not_a_derivative(NO_GRADIENT),
        linspace([2.0, -1.0], 1, DType::F64).not_a_derivative(NO_GRADIENT),
        Linspace {
            start: integers(&[0]).of(DType::I32),
            stop: integers(&[10]),
            num: integers(&[4]),
            ..linspace([0.0, 0.0], 4, DType::I32)
        },
        linspace([1.0, 2.0], 0, DType::F64).fails("`Num`: at least 1 is needed, not 0"),
        linspace([1.0, 2.0], 3, DType::U8).fails("`Out`: signed or floating point numbers are needed"),
        Linspace { stop: uniform([2]), ..linspace([1.0, 2.0], 3, DType::F64) }
            .fails("`Stop`: one element is needed"),
    ]
);

const NO_GRADIENT: &str = "it has no gradient, as in the reference";

fn linspace([start, stop]: [f64; 2], num: i64, dtype: DType) -> Linspace<Draw> {
    let [start, stop] = [start, stop].map(|x| given([1], [x]));
    Linspace { start, stop, num: integers(&[num]).of(DType::I32), out: out(), dtype }
}

/// Powers with evenly spaced exponents from a start to a stop, both included:
/// `out[i] = base ^ (start + (stop - start) · i / (num - 1))`.
#[register_op(grad = NoGrad, composed)]
pub struct Logspace<V = Var> {
    /// The first exponent, one element of a signed or floating-point dtype.
    #[input]
    pub start: V,
    /// The last exponent, one element of a signed or floating-point dtype.
    #[input]
    pub stop: V,
    /// The number of elements, at least 1: int32 or int64, one element.
    #[input(constant)]
    pub num: V,
    /// The base, one element of a signed or floating-point dtype.
    #[input]
    pub base: V,
    /// `[num]`, of the dtype of the attribute; one number is `base ^ start`.
    #[output]
    pub out: V,
    /// Element type, signed or floating-point; integers are rounded towards 0.
    #[attr]
    pub dtype: DType,
}
impl Infer for Logspace<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.base.signed()?;
        self.base.one_element()?;
        let [start, stop, num, out] = [&self.start, &self.stop, &self.num, &self.out].map(Meta::clone);
        let mut exponents = Linspace { start, stop, num, out, dtype: self.dtype };
        exponents.infer()?;
        self.out = exponents.out;
        Ok(())
    }
}
impl Composition for Logspace<Expr> {
    fn compose(&mut self) {
        // First in the dtype of the result.
        let [start, stop, base] =
            [&self.start, &self.stop, &self.base].map(|x| x.reshape(&[1]).cast(self.dtype).cast(DType::F64));
        let (start, stop, num) = (start.into(), stop.into(), (&self.num).into());
        let exponents = emit(Linspace { start, stop, num, out: New, dtype: DType::F64 }).out;
        let powers = base.pow(&exponents);
        // A power that is an integer may have been rounded down.
        let powers = if self.dtype.is_float() { powers } else { powers * (1.0 + 4.0 * f64::EPSILON) };
        self.out = powers.cast(self.dtype);
    }
}
autobwd::samples!(
    Logspace,
    [
        logspace([-1.0, 2.0, 3.0], 5, DType::F64).not_a_derivative(NO_GRADIENT),
        logspace([-1.0, 2.0, 1.5], 4, DType::F32).not_a_derivative(NO_GRADIENT),
        logspace([2.0, -1.0, 2.0], 1, DType::F64).not_a_derivative(NO_GRADIENT),
        Logspace {
            start: integers(&[0]).of(DType::I32),
            stop: integers(&[6]),
            base: integers(&[2]),
            ..logspace([0.0; 3], 4, DType::I32)
        },
        logspace([1.0, 2.0, 2.0], 0, DType::F64).fails("`Num`: at least 1 is needed, not 0"),
        logspace([1.0, 2.0, 2.0], 3, DType::U8).fails("`Out`: signed or floating point numbers are needed"),
        Logspace { base: uniform([2]), ..logspace([1.0, 2.0, 2.0], 3, DType::F64) }
            .fails("`Base`: one element is needed"),
        Logspace { stop: uniform([2]), ..logspace([1.0, 2.0, 2.0], 3, DType::F64) }
            .fails("`Stop`: one element is needed"),
    ]
);

fn logspace([start, stop, base]: [f64; 3], num: i64, dtype: DType) -> Logspace<Draw> {
    let [start, stop, base] = [start, stop, base].map(|x| given([1], [x]));
    Logspace { start, stop, num: integers(&[num]).of(DType::I32), base, out: out(), dtype }
}
