//! Deliberately wrong operators: the checker reports what is wrong, and where.

use autobwd::{
    Buf, Builder, Cx, Derived, Dims, Expr, Float, Infer, Kernel, Meta, New, NoGrad, Pointwise, Result, Var,
    ZeroGrad,
    check::*,
    emit,
    op::with_float,
    register_op,
    tensor::{Dim, Shape},
};
use autobwd_ops::{
    Math,
    control::{While, while_loop},
};

use crate::support::{
    checks::{assert_wrong, check_sample_of},
    control_flow::number,
};

/// An operator with a shape rule (by default, of the input's shape) and a floating-point kernel (by default, without
/// scratch memory), without gradient, and its sample.
macro_rules! operator {
    ($op:ident, |$x:ident, $out:ident, $cx:ident| $run:block) => {
        operator!($op, |x| x.dims.clone(), |$x, $out, $cx| $run, 0);
    };
    ($op:ident, |$meta:ident| $shape:expr, |$x:ident, $out:ident, $cx:ident| $run:block, $scratch:expr) => {
        /// Deliberately wrong.
        #[register_op(grad = NoGrad)]
        pub(crate) struct $op<V = Var> {
            /// Any shape.
            #[input]
            pub x: V,
            /// The result of the shape rule.
            #[output]
            pub out: V,
        }
        impl Infer for $op<Meta> {
            fn infer(&mut self) -> Result<()> {
                self.x.float()?;
                let $meta = &self.x;
                let dims: Dims = $shape;
                self.out.set(self.x.dtype, dims);
                Ok(())
            }
        }
        impl Kernel for $op<Buf<'_>> {
            fn run(&mut self, $cx: &Cx) -> Result<()> {
                with_float!(self.x, T => {
                    let ($x, $out) = (self.x.slice::<T>()?, self.out.slice_mut::<T>()?);
                    $run
                });
                Ok(())
            }
            fn scratch_bytes(&self, _: usize) -> usize {
                $scratch
            }
        }
        autobwd::samples!($op, [$op { x: uniform([2, 3]), out: out() }]);
    };
}

/// An elementwise operator with a formula, and its sample.
macro_rules! formula {
    ($op:ident, $grad:ident, $draw:expr, |$x:ident| $value:expr) => {
        /// Deliberately wrong.
        #[register_op(grad = $grad, pointwise)]
        pub(crate) struct $op<V = Var> {
            /// Any shape.
            #[input]
            pub x: V,
            /// Same shape.
            #[output]
            pub out: V,
        }
        impl<F: Float> Pointwise for $op<F> {
            fn eval(&mut self) {
                let $x = self.x;
                self.out = $value;
            }
        }
        autobwd::samples!($op, [$op { x: $draw, out: out() }]);
    };
}

/// The gradient operator of a formula with one input.
macro_rules! gradient {
    ($op:ident, |$x:ident, $dout:ident| $dx:expr) => {
        /// Deliberately wrong.
        #[register_op(grad = NoGrad, pointwise)]
        pub(crate) struct $op<V = Var> {
            #[input]
            pub x: V,
            #[input("Out@GRAD")]
            pub dout: V,
            #[output("X@GRAD")]
            pub dx: V,
        }
        impl<F: Float> Pointwise for $op<F> {
            fn eval(&mut self) {
                let ($x, $dout) = (self.x, self.dout);
                self.dx = $dx;
            }
        }
    };
}

operator!(LastLeftOut, |x, out, _cx| {
    let last = out.len().saturating_sub(1);
    out[..last].copy_from_slice(&x[..last]);
});
operator!(AddedToWhatWasThere, |x, out, _cx| {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += x);
});
operator!(
    UnclearedScratch,
    |x| x.dims.clone(),
    |x, out, cx| {
        cx.scratch(1, |sum: &mut [T]| {
            x.iter().for_each(|x| sum[0] += x);
            out.fill(sum[0]);
            Ok(())
        })?;
    },
    8
);
operator!(
    MoreScratchThanSaid,
    |x| x.dims.clone(),
    |x, out, cx| {
        cx.scratch(3, |sum: &mut [T]| {
            sum.fill(x[0]);
            out.fill(sum[2]);
            Ok(())
        })?;
    },
    16
);
operator!(
    LessScratchThanSaid,
    |x| x.dims.clone(),
    |x, out, cx| {
        cx.scratch(3, |sum: &mut [f32]| {
            sum.fill(0.0);
            Ok(())
        })?;
        out.copy_from_slice(x);
    },
    16
);
operator!(Allocates, |x, out, _cx| {
    out.copy_from_slice(std::hint::black_box(&x.iter().map(|x| x + 0.0).collect::<Vec<_>>()));
});
operator!(CutByThreads, |x, out, cx| {
    out.fill(x.iter().map(|x| x / cx.threads() as T).sum());
});
operator!(PanicsInKernel, |x, out, _cx| {
    out.copy_from_slice(&x[1..]);
});
operator!(NeedsElements, |x, out, _cx| {
    out.fill(x[0]);
});
operator!(
    KnowsAllDims,
    |x| x.dims.iter().map(|dim| dim.get().unwrap()).collect(),
    |x, out, _cx| {
        out.copy_from_slice(x);
    },
    0
);
operator!(
    GuessesDims,
    |x| x.dims.iter().map(|dim| dim.get().unwrap_or(1)).collect(),
    |x, out, _cx| {
        out.copy_from_slice(x);
    },
    0
);

/// Deliberately wrong: rejects unknown dimensions.
#[register_op(grad = NoGrad)]
pub(crate) struct RefusesUnknown<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape.
    #[output]
    pub out: V,
}
impl Infer for RefusesUnknown<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [rows, _] = self.x.unpack()?;
        self.x.require(rows == Dim::from(2), || "two rows are needed".into())?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Kernel for RefusesUnknown<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        self.out.copy_from(&self.x)
    }
}
autobwd::samples!(RefusesUnknown, [RefusesUnknown { x: uniform([2, 3]), out: out() }]);

/// Deliberately wrong: a shape of more than four dimensions is on the heap.
#[register_op(grad = NoGrad)]
pub(crate) struct CopiesDims<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Same shape.
    #[output(like = x)]
    pub out: V,
}
impl Kernel for CopiesDims<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        std::hint::black_box(Shape::from(self.x.dims()));
        self.out.copy_from(&self.x)
    }
}
autobwd::samples!(CopiesDims, [CopiesDims { x: uniform([2, 3]), out: out() }]);

formula!(SmoothWithoutGradient, NoGrad, positive([2, 3]), |x| x.tanh());
formula!(SmoothZero, ZeroGrad, positive([2, 3]), |x| x.tanh());
formula!(WholeZero, ZeroGrad, between(0.1, 0.9, [2, 3]), |x| x.floor());
formula!(OnKink, OnKinkGrad, given([1, 3], [-1.0, 0.0, 2.0]), |x| x.abs());
gradient!(OnKinkGrad, |x, dout| {
    let zero = F::from(0.0);
    F::select(x.gt(zero), dout, F::select(zero.gt(x), -dout, zero))
});
formula!(OnKinkTwice, Derived, given([1, 3], [-1.0, 0.0, 2.0]), |x| x.abs());
formula!(Cube, CubeGrad, given([2, 2], [0.1, 0.2, 3.0, 0.4]), |x| x * x * x);
gradient!(CubeGrad, |x, dout| dout * 3.0 * x * x);
formula!(WrongAbove, WrongAboveGrad, given([2, 2], [0.1, 0.2, 3.0, 0.4]), |x| x * x * x);
gradient!(WrongAboveGrad, |x, dout| {
    let right = dout * 3.0 * x * x;
    F::select(x.gt(F::from(1.0)), right * 2.0, right)
});

#[test]
fn elements_that_are_not_written_are_named() {
    assert_wrong("last_left_out", &["the kernel of `last_left_out`: `Out`[1, 2] is not written"]);
    assert_wrong(
        "added_to_what_was_there",
        &["`Out`[0, 0] depends on the previous contents of outputs or scratch memory"],
    );
    assert_wrong(
        "uncleared_scratch",
        &["`Out`[0, 0] depends on the previous contents of outputs or scratch memory"],
    );
}

#[test]
fn scratch_memory_has_its_declared_size() {
    let text =
        "the kernel uses 24 bytes of scratch memory at a time, but `scratch_bytes` declares 16, in one piece";
    assert_wrong("more_scratch_than_said", &[text]);
    let warnings = check_sample_of("less_scratch_than_said").unwrap().warnings;
    let text = "`less_scratch_than_said` declares 16 bytes in `scratch_bytes`, but uses 12";
    assert!(warnings.iter().any(|warning| warning.contains(text)), "{warnings:?}");
}

#[test]
fn kernels_do_not_allocate() {
    assert_wrong("allocates", &["the kernel of `allocates`: the kernel allocates memory 1 times"]);
    let text = "of 5 dimensions, the kernel of `copies_dims`: the kernel allocates memory 1 times";
    assert_wrong("copies_dims", &[text]);
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    assert_wrong("cut_by_threads", &["`Out`[0, 0] differs between one thread and three"]);
}

#[test]
fn panic_is_reported_with_its_line() {
    let start =
        "`panics_in_kernel`: on inputs with all bytes 0x00, the kernel of `panics_in_kernel` panicked at ";
    assert_wrong("panics_in_kernel", &[start, "checker.rs:", "source slice length"]);
    assert_wrong(
        "needs_elements",
        &[
            "dimensions of 2 made 0, ",
            "the kernel of `needs_elements` panicked at ",
            "checker.rs:",
            "out of bounds",
        ],
    );
}

#[test]
fn shape_rules_are_right_where_dimensions_are_unknown() {
    let start = "the shape rule of `knows_all_dims`, where `X` is float64 [-1, 3]: the shape rule of `knows_all_dims` panicked at ";
    assert_wrong("knows_all_dims", &[start, "checker.rs:"]);
    assert_wrong(
        "guesses_dims",
        &[
            "where `X` is float64 [-1, 3]: `Out` is float64 [1, 3] by the shape rule, but float64 [2, 3] with known \
             dimensions",
        ],
    );
    let warnings = check_sample_of("refuses_unknown").unwrap().warnings;
    let text = "an error where dimensions are unknown: the shape rule of `refuses_unknown`, where `X` is float64 \
                [-1, 3]: `X`: two rows are needed";
    assert!(warnings.iter().any(|warning| warning.starts_with(text)), "{warnings:?}");
}

#[test]
fn gradient_that_counts_as_zero_is_zero() -> Result<()> {
    let start = "the gradient is declared `ZeroGrad`, but the outputs change with `X`[";
    assert_wrong("smooth_zero", &[start, "by differences, the derivative is "]);
    assert_eq!(check_sample_of("whole_zero")?, CheckedSample::default());
    let warnings = check_sample_of("smooth_without_gradient")?.warnings;
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].starts_with("the operator declares `NoGrad`, though the outputs change with `X`["));
    Ok(())
}

#[test]
fn worst_element_of_a_gradient_is_named() {
    assert_wrong(
        "wrong_above",
        &["the gradient of `X` is ", " at [1, 0], by differences ", "; 1 of 4 elements are off"],
    );
}

#[test]
fn kinks_and_missing_second_order_are_warnings() -> Result<()> {
    let kink = "`X`[0, 1] is at a kink, where the comparison of gradients means little: the derivative is ";
    let warnings = check_sample_of("on_kink")?.warnings;
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(
        warnings[0].starts_with("the gradient operators have no gradient: ") && warnings[1].starts_with(kink)
    );
    assert_wrong(
        "on_kink_twice",
        &["second order, where `X`[0, 1] is at a kink", "the gradient of `X` is 0.0 at [0, 1]"],
    );
    let cube = check_sample_of("cube")?;
    assert_eq!((cube.elements, cube.second_order), (4, 0));
    assert_eq!(cube.warnings.len(), 1, "{:?}", cube.warnings);
    assert!(cube.warnings[0].starts_with("the gradient operators have no gradient: "), "{:?}", cube.warnings);
    Ok(())
}

/// Two steps of `y ← step(y)`.
fn twice(net: &Builder, x: &[Expr], step: impl Fn(&Expr) -> Expr) -> Result<Vec<Expr>> {
    let end = number(net, 2);
    let last = while_loop(
        &[x[0].clone(), number(net, 0)],
        |v| v[1].less_than(&end),
        |v| vec![step(&v[0]), &v[1] + 1.0],
    );
    Ok(vec![last[0].clone()])
}

fn wrong_above(x: &Expr) -> Expr {
    emit(WrongAbove { x: x.into(), out: New }).out
}

#[test]
fn operators_with_a_block_are_sampled_as_programs() -> Result<()> {
    let draw = || [given([2], [0.5, 1.5])];
    let right = Sample::of_program::<While>(draw(), |net, x| twice(net, x, |y| y.tanh()));
    let checked = check_sample(&right)?;
    assert_eq!((checked.elements, checked.second_order), (2, 4));
    assert!(checked.warnings.is_empty(), "{:?}", checked.warnings);
    let e =
        check_sample(&Sample::of_program::<While>(draw(), |net, x| twice(net, x, wrong_above))).unwrap_err();
    assert!(e.to_string().starts_with("`while`: the gradient of `v0` is "), "{e}");
    let e = check_sample(&Sample::of_program::<While>(draw(), |_: &Builder, x| Ok(vec![x[0].tanh()])))
        .unwrap_err();
    assert_eq!(e.to_string(), "`while`: the program of the sample has no `while`");
    Ok(())
}
