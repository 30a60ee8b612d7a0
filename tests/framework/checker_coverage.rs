//! What samples do not cover: the checker reports it.

use autobwd::{
    Buf, Cx, Derived, Float, Infer, Kernel, Meta, NoGrad, OpInfoMap, Pointwise, Result, Var, check::*,
    op::with_float, register_op,
};

use crate::support::checks::assert_wrong;

/// Its samples cover as little as possible.
#[register_op(grad = Derived, pointwise, broadcast)]
pub(crate) struct OneSided<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape that broadcasts.
    #[input]
    pub y: V,
    /// The broadcast shape.
    #[output]
    pub out: V,
}
impl<F: Float> Pointwise for OneSided<F> {
    fn eval(&mut self) {
        self.out = (self.x * self.x + 1.0).log() * self.y;
    }
}
autobwd::samples!(OneSided, [OneSided { x: positive([2, 3]), y: uniform([2, 3]), out: out() }]);

/// Copies the first of any tensors, of any dtype.
#[register_op(grad = NoGrad)]
pub(crate) struct FirstOf<V = Var> {
    /// Any shapes.
    #[input]
    pub x: Vec<V>,
    /// The first.
    #[output]
    pub out: V,
    /// Has no effect.
    #[attr(default = 1)]
    pub idle: i32,
}
impl Infer for FirstOf<Meta> {
    fn infer(&mut self) -> Result<()> {
        let first =
            self.x.first().ok_or_else(|| autobwd::Error::new(autobwd::ErrorKind::Slot, "`X` is empty"))?;
        self.out.like(first);
        Ok(())
    }
}
impl Kernel for FirstOf<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x[0])
    }
}
autobwd::samples!(FirstOf, [FirstOf { x: vec![uniform([2, 3])], out: out(), idle: 1 }]);

/// Has an integer input, for which the gradient operator writes a gradient.
#[register_op(grad = ScaledByGrad, infallible)]
pub(crate) struct ScaledBy<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// The factor: one integer, which must not be 0.
    #[input]
    pub by: V,
    /// Like `x`.
    #[output(like = x)]
    pub out: V,
}
impl Kernel for ScaledBy<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let by = self.by.slice::<i64>()?[0];
        if by == 0 {
            return Err(autobwd::Error::data("nothing can be scaled by 0"));
        }
        with_float!(self.x, T => {
            let (x, out) = (self.x.slice::<T>()?, self.out.slice_mut::<T>()?);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = *x * by as T);
        });
        Ok(())
    }
}
/// `dx = dout * by`, and a gradient that can never be requested.
#[register_op(grad = NoGrad)]
pub(crate) struct ScaledByGrad<V = Var> {
    #[input]
    pub by: V,
    #[input("Out@GRAD")]
    pub dout: V,
    #[output("X@GRAD", like = dout)]
    pub dx: Option<V>,
    #[output("By@GRAD", like = by)]
    pub dby: Option<V>,
}
impl Kernel for ScaledByGrad<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let by = self.by.slice::<i64>()?[0];
        let Some(dx) = &mut self.dx else { return Ok(()) };
        with_float!(self.dout, T => {
            let (dout, dx) = (self.dout.slice::<T>()?, dx.slice_mut::<T>()?);
            dx.iter_mut().zip(dout).for_each(|(dx, dout)| *dx = *dout * by as T);
        });
        Ok(())
    }
}
autobwd::samples!(
    ScaledBy,
    [ScaledBy { x: uniform([2, 3]), by: given([1], [3.0]).of(autobwd::DType::I64), out: out() }]
);

/// `out = x / by`, which fails on an input that is not declared `checked`.
#[register_op(grad = NoGrad)]
pub(crate) struct CheckedQuotient<V = Var> {
    #[input(checked)]
    pub x: V,
    #[input]
    pub by: V,
    #[output(like = x)]
    pub out: V,
}
impl Kernel for CheckedQuotient<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let by = self.by.slice::<i64>()?[0];
        if by == 0 {
            return Err(autobwd::Error::data("nothing can be divided by 0"));
        }
        with_float!(self.x, T => {
            let (x, out) = (self.x.slice::<T>()?, self.out.slice_mut::<T>()?);
            out.iter_mut().zip(x).for_each(|(out, x)| *out = *x / by as T);
        });
        Ok(())
    }
}
autobwd::samples!(
    CheckedQuotient,
    [CheckedQuotient { x: uniform([2, 3]), by: given([1], [3.0]).of(autobwd::DType::I64), out: out() }]
);

#[test]
fn operators_with_checked_inputs_are_given_bad_data_in_others() {
    let bytes = "it fails on inputs that are not `checked` with all bytes 0x00: nothing can be divided by 0";
    assert_wrong("checked_quotient", &["the kernel of `checked_quotient`", bytes]);
}

#[test]
fn infallible_operators_are_given_bad_data() {
    let bytes = "it is declared `infallible`, but fails on inputs with all bytes 0x00: nothing can be \
                 scaled by 0";
    assert_wrong("scaled_by", &["the kernel of `scaled_by`", bytes]);
}

#[test]
fn gradients_of_integer_inputs_are_reported() -> Result<()> {
    let coverage = check_coverage("autobwd_tests")?;
    let text = "operator `scaled_by`: `scaled_by_grad` writes the gradient of `By`, which holds no floating point numbers in \
                any sample";
    assert!(coverage.gaps.iter().any(|said| said == text), "{:#?}", coverage.gaps);
    Ok(())
}

#[test]
fn uncovered_corners_are_reported() -> Result<()> {
    let coverage = check_coverage("autobwd_tests")?;
    let has =
        |all: &[String], text: &str| assert!(all.iter().any(|said| said == text), "{all:#?}\nlacks\n{text}");
    has(&coverage.gaps, "operator `first_of`: attribute `idle` has one value in all samples");
    has(&coverage.corners, "operator `first_of`: input `X` has 1 variables in all samples");
    let dtypes = "operator `first_of`: the shape rule accepts bool, uint8, int32, int64, but all samples have \
                  floating point numbers";
    has(&coverage.corners, dtypes);
    has(&coverage.corners, "operator `one_sided`: in no sample operands are broadcast");
    has(&coverage.corners, "operator `one_sided`: input `X` has no negative numbers in any sample");
    assert!(!coverage.corners.iter().any(|said| said.contains("`Y` has no")), "{:#?}", coverage.corners);
    Ok(())
}

#[test]
fn coverage_is_checked_for_the_named_package() -> Result<()> {
    assert_eq!(check_coverage("autobwd-tests")?, check_coverage("autobwd_tests")?);
    // For this file, since a test is its own library.
    assert_eq!(check_coverage("framework")?, check_coverage("autobwd-tests")?);
    let e = check_crate("my-operators").unwrap_err().to_string();
    let packages =
        "packages with samples are `autobwd-core`, `autobwd-ops`, `autobwd-parallel`, `autobwd-tests`";
    assert_eq!(e, format!("package `my-operators` has 0 operators and no samples; {packages}"));
    let e = check_crate("autobwd-tests").unwrap_err().to_string();
    let lines: Vec<&str> = e.lines().collect();
    assert!(lines.contains(&"operator `first_of`: attribute `idle` has one value in all samples"), "{e}");
    assert!(
        lines.iter().any(|line| line.starts_with("cut_by_threads, row 0: `cut_by_threads`: the kernel of ")),
        "{e}"
    );
    assert!(OpInfoMap::linked()?.get("first_of").is_ok());
    Ok(())
}
