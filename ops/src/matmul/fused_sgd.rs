//! Fused gradient of a matrix product and SGD step.

use autobwd::{
    Buf, Composition, Cx, Expr, Infer, Kernel, Meta, New, NoGrad, OpDesc, Result, Var,
    check::*,
    emit,
    op::{Peephole, with_float},
    register_op,
    tensor::{Dim, OptionalBuf},
};

use super::{
    products::{Products, inner_dim, matmul_dims, nth_mut},
    v2::MatmulV2Grad,
};
use crate::{
    kernel_helpers::check_grad,
    update::{SgdOp, one},
};

/// Fused `matmul_v2_grad` and `sgd`: `dx = dout · paramᵀ` and `param_out = param - learning_rate * xᵀ · dout`. The
/// gradient of the right factor is not materialised. This operator is not in the reference; plans substitute it.
#[register_op(grad = NoGrad, infallible)]
pub struct MatmulV2GradSgd<V = Var> {
    /// Left factors.
    #[input]
    pub x: V,
    /// Right factors.
    #[input]
    pub param: V,
    /// Gradient of the products.
    #[input("Out@GRAD")]
    pub dout: V,
    /// One element.
    #[input]
    pub learning_rate: V,
    /// Same shape as `x`.
    #[output("X@GRAD")]
    pub dx: Option<V>,
    /// Same shape as `param`.
    #[output(inplace = param, like = param)]
    pub param_out: V,
    /// As in `matmul_v2`.
    #[attr(default = false)]
    pub trans_x: bool,
    /// As in `matmul_v2`.
    #[attr(default = false)]
    pub trans_y: bool,
}
impl Infer for MatmulV2GradSgd<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = matmul_dims(&self.x, self.trans_x, &self.param, self.trans_y)?;
        self.learning_rate.same_dtype(&self.x)?;
        self.learning_rate.one_element()?;
        self.dx.iter_mut().for_each(|dx| dx.like(&self.x));
        check_grad(&self.x, &self.dout, &dims)
    }

    fn flops(&self) -> Dim {
        let one = Dim::from(2) * self.dout.dims.numel() * inner_dim(&self.x, self.trans_x);
        one * Dim::from(1 + usize::from(self.dx.is_some()))
    }
}
impl Kernel for MatmulV2GradSgd<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        with_float!(self.dout, T => {
            let (x, dims) = ((self.x.slice()?, self.x.dims()), self.param.dims());
            let (dout, rate) = (self.dout.slice::<T>()?, one::<T>(&self.learning_rate)?);
            let param = self.param_out.inout::<T>(&self.param)?.copied();
            if let Some(dx) = self.dx.slice_mut()? {
                // `param` still has the value that the product read.
                let all = Products::new(x, self.trans_x, (&*param, dims), self.trans_y);
                all.left_gradient(cx, dout, dx)?;
            }
            let all = Products::<T>::new(x, self.trans_x, (&[], dims), self.trans_y);
            all.right_gradients(dout, |i, left, right| {
                cx.product_add(nth_mut(param, i, all.y.len()), -rate, left, right)
            })
        })
    }
}
impl Composition for MatmulV2GradSgd<Expr> {
    fn compose(&mut self) {
        let (x, y, dout) = ((&self.x).into(), (&self.param).into(), (&self.dout).into());
        let (trans_x, trans_y) = (self.trans_x, self.trans_y);
        let gradients = MatmulV2Grad { x, y, dout, dx: Some(New), dy: Some(New), trans_x, trans_y };
        let MatmulV2Grad { dx, dy, .. } = emit(gradients);
        let (param, learning_rate) = ((&self.param).into(), (&self.learning_rate).into());
        if let Some(grad) = dy.map(Into::into) {
            self.param_out = emit(SgdOp { param, learning_rate, grad, param_out: New }).param_out;
        }
        self.dx = dx;
    }
}
autobwd::samples!(
    MatmulV2GradSgd,
    [
        matmul_grad_sgd(uniform([2, 3]), uniform([3, 4]), uniform([2, 4]), false, false),
        matmul_grad_sgd(uniform([3, 2]), uniform([4, 3]), uniform([2, 4]), true, true),
        matmul_grad_sgd(uniform([5, 2, 3]), uniform([3, 4]), uniform([5, 2, 4]), false, false),
        matmul_grad_sgd(uniform([5, 2, 3]), uniform([5, 3, 4]), uniform([5, 2, 4]), false, false),
        matmul_grad_sgd(uniform([5, 3, 2]), uniform([1, 4, 3]), uniform([5, 2, 4]), true, true)
            .tolerance(2e-5, "at the large size, each sum in float32 has 350,000 terms"),
        MatmulV2GradSgd {
            dx: None,
            ..matmul_grad_sgd(uniform([0, 3]), uniform([3, 4]), uniform([0, 4]), false, false)
        },
        MatmulV2GradSgd {
            learning_rate: positive([2]),
            ..matmul_grad_sgd(uniform([2, 3]), uniform([3, 4]), uniform([2, 4]), false, false)
        }
        .fails("`LearningRate`: one element is needed"),
    ]
);

fn matmul_grad_sgd(x: Draw, param: Draw, dout: Draw, trans_x: bool, trans_y: bool) -> MatmulV2GradSgd<Draw> {
    let (learning_rate, dx) = (positive([1]), Some(out()));
    MatmulV2GradSgd { x, param, dout, learning_rate, dx, param_out: out(), trans_x, trans_y }
}

impl Peephole<SgdOp> for MatmulV2Grad {
    fn merge(&self, then: &SgdOp) -> Option<OpDesc> {
        let MatmulV2Grad { x, y, dout, dx, dy, trans_x, trans_y } = *self;
        let SgdOp { param, learning_rate, grad, param_out } = *then;
        let step = MatmulV2GradSgd { x, param, dout, learning_rate, dx, param_out, trans_x, trans_y };
        (dy == Some(grad) && y == param).then(|| step.into())
    }
}
