//! A private operator.
use autobwd::{Float, OpInfoMap, Pointwise, Var, register_op};

mod inner {
    use super::*;

    #[register_op(grad = self::SquareGrad, name = "private_square", pointwise)]
    struct Square<V = Var> {
        #[input]
        x: V,
        #[output]
        r#out: V,
    }
    impl<F: Float> Pointwise for Square<F> {
        fn eval(&mut self) {
            self.out = self.x * self.x;
        }
    }

    #[register_op(grad = autobwd::NoGrad, name = "private_square_grad", pointwise)]
    struct SquareGrad<V = Var> {
        #[input]
        x: V,
        #[input("Out@GRAD")]
        r#in: V,
        #[output("X@GRAD")]
        dx: V,
    }
    impl<F: Float> Pointwise for SquareGrad<F> {
        fn eval(&mut self) {
            self.dx = self.x * 2.0 * self.r#in;
        }
    }
}

#[test]
fn operator_may_be_private() -> autobwd::Result<()> {
    let ops = OpInfoMap::linked()?;
    assert_eq!(ops.get("private_square")?.schema().outputs[0].name, "Out");
    assert_eq!(ops.get("private_square_grad")?.schema().inputs.len(), 2);
    Ok(())
}
