//! Tests of tensors: `isclose`, `allclose`, `equal_all` and `is_empty`.

use autobwd::{
    Attrs, Composition, DType, Error, Expr, Infer, Meta, Result, Var, ZeroGrad, check::*, register_op,
};

use crate::{
    Math,
    math::{all_sizes, filled, in_dtype, product},
};

/// How far numbers may be from each other.
#[derive(Attrs, Clone, Debug)]
pub struct ClosenessAttrs {
    /// The distance relative to the other number, as text.
    #[attr(default = "1e-5")]
    pub rtol: String,
    /// The distance at 0, as text.
    #[attr(default = "1e-8")]
    pub atol: String,
    /// Count NaN as close to NaN.
    #[attr(default = false)]
    pub equal_nan: bool,
}

impl ClosenessAttrs {
    fn check(&self, input: &Meta, other: &Meta, tolerances: [Option<&Meta>; 2]) -> Result<()> {
        input.signed()?;
        other.same_as(input)?;
        for (name, text, tensor) in [("rtol", &self.rtol, tolerances[0]), ("atol", &self.atol, tolerances[1])]
        {
            match tensor {
                Some(tensor) => {
                    tensor.float()?;
                    tensor.one_element()?;
                }
                None if number(text).is_some() => {}
                None => return Err(Error::attr(name, format!("a number is needed, not \"{text}\""))),
            }
        }
        Ok(())
    }

    /// Whether each pair is close, bool.
    fn close(&self, input: &Expr, other: &Expr, tolerances: [Option<&Expr>; 2]) -> Expr {
        // In double precision, which holds sums of tolerances.
        let [x, y] = [input, other].map(|x| in_dtype(x, DType::F64));
        let scalar = |tensor: Option<&Expr>, text: &str| match tensor {
            Some(tensor) => in_dtype(tensor, DType::F64).reshape(&[]),
            None => filled(input.builder(), DType::F64, &number(text).unwrap_or_default().to_string(), &[]),
        };
        let [rtol, atol] = [scalar(tolerances[0], &self.rtol), scalar(tolerances[1], &self.atol)];
        let bound = (&y * &rtol).abs() + atol;
        // The distance of equal infinities is NaN. The reference allows for rounding by 1e-15.
        let close = x.equal(&y).logical_or(&((&x - &y).abs() - 1e-15).less_equal(&bound));
        if self.equal_nan { close.logical_or(&x.isnan().logical_and(&y.isnan())) } else { close }
    }
}

/// The finite number that a text gives.
fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

/// Whether pairs of numbers are close: `out = |input - other| <= atol + |rtol * other|`. Equal infinities are close.
#[register_op(grad = ZeroGrad, composed)]
pub struct Isclose<V = Var> {
    /// Numbers of any shape.
    #[input]
    pub input: V,
    /// Numbers of the same shape and dtype.
    #[input]
    pub other: V,
    /// The relative distance in place of attribute `rtol`: one floating-point number.
    #[input("Rtol")]
    pub rtol_tensor: Option<V>,
    /// The distance at 0 in place of attribute `atol`: one floating-point number.
    #[input("Atol")]
    pub atol_tensor: Option<V>,
    /// Bools in the shape of `input`.
    #[output]
    pub out: V,
    /// How far numbers may be from each other.
    #[attrs]
    pub closeness: ClosenessAttrs,
}
impl Infer for Isclose<Meta> {
    fn infer(&mut self) -> Result<()> {
        let tolerances = [self.rtol_tensor.as_ref(), self.atol_tensor.as_ref()];
        self.closeness.check(&self.input, &self.other, tolerances)?;
        self.out.set(DType::Bool, self.input.dims.clone());
        Ok(())
    }
}
impl Composition for Isclose<Expr> {
    fn compose(&mut self) {
        let tolerances = [self.rtol_tensor.as_ref(), self.atol_tensor.as_ref()];
        self.out = self.closeness.close(&self.input, &self.other, tolerances);
    }
}

/// Whether all pairs of numbers are close: `out = ∀ |input - other| <= atol + |rtol * other|`. Equal infinities are close.
#[register_op(grad = ZeroGrad, composed)]
pub struct Allclose<V = Var> {
    /// Numbers of any shape.
    #[input]
    pub input: V,
    /// Numbers of the same shape and dtype.
    #[input]
    pub other: V,
    /// The relative distance in place of attribute `rtol`: one floating-point number.
    #[input("Rtol")]
    pub rtol_tensor: Option<V>,
    /// The distance at 0 in place of attribute `atol`: one floating-point number.
    #[input("Atol")]
    pub atol_tensor: Option<V>,
    /// One bool, `[]`.
    #[output]
    pub out: V,
    /// How far numbers may be from each other.
    #[attrs]
    pub closeness: ClosenessAttrs,
}
impl Infer for Allclose<Meta> {
    fn infer(&mut self) -> Result<()> {
        let tolerances = [self.rtol_tensor.as_ref(), self.atol_tensor.as_ref()];
        self.closeness.check(&self.input, &self.other, tolerances)?;
        self.out.set(DType::Bool, []);
        Ok(())
    }
}
impl Composition for Allclose<Expr> {
    fn compose(&mut self) {
        let tolerances = [self.rtol_tensor.as_ref(), self.atol_tensor.as_ref()];
        self.out = self.closeness.close(&self.input, &self.other, tolerances).all(&[]);
    }
}

/// Samples shared by both tests.
macro_rules! closeness_samples {
    ($op:ident) => {
        const _: () = {
            fn row(input: Draw, other: Draw, closeness: ClosenessAttrs) -> $op<Draw> {
                $op { input, other, rtol_tensor: None, atol_tensor: None, out: out(), closeness }
            }
            fn within(rtol: &str, atol: &str) -> ClosenessAttrs {
                ClosenessAttrs::default().rtol(rtol).atol(atol)
            }
            fn numbers() -> Draw {
                given([2, 3], [1.0, 2.0, -3.0, 4.0, 0.0, 100.0])
            }
            fn others() -> Draw {
                given([2, 3], [1.0, 2.125, -3.125, 4.25, 0.0625, 103.0])
            }
            fn special() -> Draw {
                given([5], [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY, 1.0])
            }
            autobwd::samples!(
                $op,
                [
                    row(numbers(), others(), within("1e-5", "1e-8")),
                    row(numbers(), others(), within("0.05", "0.25")),
                    row(numbers(), numbers(), within("1e-5", "1e-8")),
                    row(special(), special(), ClosenessAttrs::default()),
                    row(special(), special(), ClosenessAttrs::default().equal_nan(true)),
                    row(
                        special(),
                        given([5], [1.0, f64::NEG_INFINITY, 2.0, 3.0, f64::INFINITY]),
                        ClosenessAttrs::default()
                    ),
                    row(uniform([]), between(2.0, 3.0, []), ClosenessAttrs::default()),
                    row(uniform([0, 3]), uniform([0, 3]), ClosenessAttrs::default()),
                    row(integers(&[1, 2, 30]), integers(&[1, 4, 31]), within("0.1", "0")),
                    $op {
                        rtol_tensor: Some(given([1], [0.05])),
                        atol_tensor: Some(given([1], [0.25]).of(DType::F64)),
                        ..row(numbers(), others(), within("x", "x"))
                    },
                    $op {
                        rtol_tensor: Some(given([1], [-0.5])),
                        atol_tensor: Some(given([1], [-0.25])),
                        ..row(numbers(), others(), within("1e-5", "0"))
                    },
                    row(numbers(), others(), within("x", "0"))
                        .fails("attribute `rtol`: a number is needed, not \"x\""),
                    row(numbers(), others(), within("0", "inf"))
                        .fails("attribute `atol`: a number is needed, not \"inf\""),
                    row(uniform([2, 3]), uniform([3]), within("0", "0")).fails("`Other`: shape [3]"),
                    row(
                        integers_below(2, [2]).of(DType::Bool),
                        integers_below(2, [2]).of(DType::Bool),
                        within("0", "0")
                    )
                    .fails("`Input`: signed or floating point numbers are needed"),
                    $op { rtol_tensor: Some(uniform([2])), ..row(numbers(), others(), within("0", "0")) }
                        .fails("`Rtol`: one element is needed"),
                    $op { atol_tensor: Some(integers(&[1])), ..row(numbers(), others(), within("0", "0")) }
                        .fails("`Atol`: floating point numbers are needed"),
                ]
            );
        };
    };
}
closeness_samples!(Isclose);
closeness_samples!(Allclose);

/// Whether two tensors have the same shape and equal elements.
#[register_op(grad = ZeroGrad, composed)]
pub struct EqualAll<V = Var> {
    /// Any shape.
    #[input]
    pub x: V,
    /// Any shape, the dtype of `x`.
    #[input]
    pub y: V,
    /// One bool, `[]`.
    #[output]
    pub out: V,
}
impl Infer for EqualAll<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.y.same_dtype(&self.x)?;
        self.out.set(DType::Bool, []);
        Ok(())
    }
}
impl Composition for EqualAll<Expr> {
    fn compose(&mut self) {
        let (x, y, builder) = (&self.x, &self.y, self.x.builder());
        let pairs: Vec<_> = all_sizes(x).into_iter().zip(all_sizes(y)).collect();
        let differ = pairs.iter().any(|(m, n)| m.known().zip(n.known()).is_some_and(|(m, n)| m != n));
        if x.dims().len() != y.dims().len() || differ {
            self.out = filled(builder, DType::Bool, "0", &[]);
            return;
        }
        let is_open = |pair: &&(_, _)| !crate::DimExpr::is_same(&pair.0, &pair.1);
        let open: Vec<_> = pairs.iter().filter(is_open).collect();
        if open.is_empty() {
            self.out = x.equal(y).all(&[]);
            return;
        }
        // Tensors of other sizes are compared as far as the smaller one goes.
        let [x, y] = [x, y].map(|x| x.flatten(0, -1));
        let count = x.dim(0).min(y.dim(0));
        let [x, y] = [x, y].map(|x| x.slice_to(0, &0.into(), &count));
        let sizes = open.iter().map(|(m, n)| m.number(builder).equal(&n.number(builder)));
        let is_one_shape = sizes.reduce(|all, one| all.logical_and(&one)).map(|all| all.reshape(&[]));
        let equal = x.equal(&y).all(&[]);
        self.out = is_one_shape.map_or(equal.clone(), |is_one_shape| equal.logical_and(&is_one_shape));
    }
}
autobwd::samples!(
    EqualAll,
    [
        EqualAll {
            x: given([2, 2], [1.0, 2.0, 3.0, 4.0]),
            y: given([2, 2], [1.0, 2.0, 3.0, 4.0]),
            out: out()
        },
        EqualAll { x: uniform([2, 3]), y: between(2.0, 3.0, [2, 3]), out: out() },
        EqualAll { x: integers(&[1, 2, 3]), y: integers(&[1, 2, 3]), out: out() },
        EqualAll { x: integers(&[1, 2, 3]), y: integers(&[1, 2]), out: out() },
        EqualAll { x: uniform([2, 3]), y: uniform([6]), out: out() },
        EqualAll { x: uniform([0, 3]), y: uniform([0, 3]), out: out() },
        EqualAll { x: given([], [0.5]), y: given([], [0.5]), out: out() },
        EqualAll {
            x: given([2], [1.0, 0.0]).of(DType::Bool),
            y: given([2], [1.0, 1.0]).of(DType::Bool),
            out: out()
        },
        EqualAll { x: uniform([2]), y: integers(&[1, 2]), out: out() }
            .fails("`Y`: dtype int64 does not match"),
    ]
);

/// Whether a tensor has no elements.
#[register_op(grad = ZeroGrad, composed)]
pub struct IsEmpty<V = Var> {
    /// Any shape, any dtype.
    #[input(shape_only)]
    pub x: V,
    /// One bool, `[]`.
    #[output]
    pub out: V,
}
impl Infer for IsEmpty<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.out.set(DType::Bool, []);
        Ok(())
    }
}
impl Composition for IsEmpty<Expr> {
    fn compose(&mut self) {
        let (builder, count) = (self.x.builder(), product(&all_sizes(&self.x)));
        self.out = match count.known() {
            Some(n) => filled(builder, DType::Bool, if n == 0 { "1" } else { "0" }, &[]),
            None => {
                let zero = filled(builder, DType::I64, "0", &[1.into()]);
                count.number(builder).equal(&zero).reshape(&[])
            }
        };
    }
}
autobwd::samples!(
    IsEmpty,
    [
        IsEmpty { x: uniform([2, 3]), out: out() },
        IsEmpty { x: uniform([0, 3]), out: out() },
        IsEmpty { x: integers(&[]), out: out() },
        IsEmpty { x: uniform([]), out: out() },
    ]
);
