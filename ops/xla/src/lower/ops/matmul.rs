//! Matrix products.

use autobwd_ops::matmul::{
    Bmm, BmmGrad, Dot, DotGrad, Matmul, MatmulGrad, MatmulV2, MatmulV2Grad, MatmulV2GradSgd, Mul, MulGrad,
    Mv, MvGrad,
};

use super::prelude::*;

rules!(
    Bmm,
    BmmGrad,
    Dot,
    DotGrad,
    Matmul,
    MatmulGrad,
    MatmulV2,
    MatmulV2Grad,
    MatmulV2GradSgd,
    Mul,
    MulGrad,
    Mv,
    MvGrad
);

/// The factors of a product as matrices with equal batch dimensions.
struct MatmulFactors {
    x: Hlo,
    y: Hlo,
}

impl MatmulFactors {
    /// Vectors become a row and a column.
    fn of(x: &Hlo, y: &Hlo, [trans_x, trans_y]: [bool; 2]) -> MatmulFactors {
        let matrix = |value: &Hlo, transposed: bool, vector: [usize; 2]| match (value.rank(), transposed) {
            (1, _) => value.reshape(&vector),
            (_, true) => value.transposed(),
            (_, false) => value.clone(),
        };
        let (x, y) = (matrix(x, trans_x, [1, x.numel()]), matrix(y, trans_y, [y.numel(), 1]));
        let batch = batch_dims(&x, &y);
        let (x, y) = (in_batch(&x, &batch), in_batch(&y, &batch));
        MatmulFactors { x, y }
    }

    fn product(&self) -> Hlo {
        self.x.matmul(&self.y)
    }

    /// The gradient of the product as matrices.
    fn matrices(&self, dout: &Hlo) -> Hlo {
        let (x, y) = (self.x.dims(), self.y.dims());
        let mut dims = x.to_vec();
        if let (Some(columns), Some(of)) = (dims.last_mut(), y.last()) {
            *columns = *of;
        }
        dout.reshape(&dims)
    }

    fn left_gradient(&self, dout: &Hlo) -> Hlo {
        self.matrices(dout).matmul(&self.y.transposed())
    }

    fn right_gradient(&self, dout: &Hlo) -> Hlo {
        self.x.transposed().matmul(&self.matrices(dout))
    }
}

/// The dimensions before the last two, broadcast.
fn batch_dims(x: &Hlo, y: &Hlo) -> Vec<usize> {
    let (x, y) = (&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2]);
    let rank = x.len().max(y.len());
    let of = |dims: &[usize], i: usize| (i + dims.len()).checked_sub(rank).map_or(1, |i| dims[i]);
    (0..rank).map(|i| if of(x, i) == 1 { of(y, i) } else { of(x, i) }).collect()
}

fn in_batch(value: &Hlo, batch: &[usize]) -> Hlo {
    let dims: Vec<usize> = batch.iter().chain(&value.dims()[value.rank() - 2..]).copied().collect();
    value.broadcast_to(&dims)
}

/// The gradient of a factor with the dimensions of `slot`, from that of its matrices.
fn stored(gradient: &Hlo, slot: &Hlo, transposed: bool) -> Hlo {
    let gradient = if transposed && slot.rank() > 1 { gradient.transposed() } else { gradient.clone() };
    if slot.rank() > 1 {
        return gradient.sum_to(slot.dims());
    }
    // A vector has a row or a column of 1.
    let rank = gradient.rank();
    gradient.sum(&(0..rank - 2).collect::<Vec<_>>())
}

/// `dx = dout · yᵀ`, `dy = xᵀ · dout`
fn gradients([x, y, dout]: [&Hlo; 3], [dx, dy]: [&mut Option<Hlo>; 2], transposed: [bool; 2], scale: f64) {
    let factors = MatmulFactors::of(x, y, transposed);
    let dout = scaled(dout, scale);
    if let Some(dx) = dx {
        *dx = stored(&factors.left_gradient(&dout), dx, transposed[0]);
    }
    if let Some(dy) = dy {
        *dy = stored(&factors.right_gradient(&dout), dy, transposed[1]);
    }
}

fn scaled(value: &Hlo, scale: f64) -> Hlo {
    if scale == 1.0 { value.clone() } else { value * scale }
}

impl Rule<Hlo> for MatmulV2<Hlo> {
    fn apply(&mut self) {
        self.out = MatmulFactors::of(&self.x, &self.y, [self.trans_x, self.trans_y]).product();
    }
}
impl Rule<Hlo> for MatmulV2Grad<Hlo> {
    fn apply(&mut self) {
        let transposed = [self.trans_x, self.trans_y];
        gradients([&self.x, &self.y, &self.dout], [&mut self.dx, &mut self.dy], transposed, 1.0);
    }
}
impl Rule<Hlo> for MatmulV2GradSgd<Hlo> {
    fn apply(&mut self) {
        let transposed = [self.trans_x, self.trans_y];
        let mut gradient = Some(self.param_out.clone());
        gradients([&self.x, &self.param, &self.dout], [&mut self.dx, &mut gradient], transposed, 1.0);
        let rate = self.learning_rate.reshape(&[]);
        if let Some(gradient) = gradient {
            self.param_out = &self.param - gradient.reshape(self.param.dims()) * rate;
        }
    }
}

impl Rule<Hlo> for Matmul<Hlo> {
    fn apply(&mut self) {
        let product = MatmulFactors::of(&self.x, &self.y, [self.transpose_x, self.transpose_y]).product();
        self.out = scaled(&product, f64::from(self.alpha));
    }
}
impl Rule<Hlo> for MatmulGrad<Hlo> {
    fn apply(&mut self) {
        let (transposed, scale) = ([self.transpose_x, self.transpose_y], f64::from(self.alpha));
        gradients([&self.x, &self.y, &self.dout], [&mut self.dx, &mut self.dy], transposed, scale);
    }
}

impl Rule<Hlo> for Bmm<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.matmul(&self.y);
    }
}
impl Rule<Hlo> for BmmGrad<Hlo> {
    fn apply(&mut self) {
        gradients([&self.x, &self.y, &self.dout], [&mut self.dx, &mut self.dy], [false; 2], 1.0);
    }
}

impl Rule<Hlo> for Mv<Hlo> {
    fn apply(&mut self) {
        self.out = self.x.dot(&self.vec, &[(1, 0)], &[]);
    }
}
impl Rule<Hlo> for MvGrad<Hlo> {
    fn apply(&mut self) {
        gradients([&self.x, &self.vec, &self.dout], [&mut self.dx, &mut self.dvec], [false; 2], 1.0);
    }
}

/// A tensor as a matrix: the first `columns_from` dimensions are rows.
fn flattened(value: &Hlo, columns_from: i32) -> Hlo {
    let (rows, columns) = value.dims().split_at((columns_from.max(0) as usize).min(value.rank()));
    value.reshape(&[rows.iter().product(), columns.iter().product()])
}

impl Rule<Hlo> for Mul<Hlo> {
    fn apply(&mut self) {
        let (x, y) = (flattened(&self.x, self.x_num_col_dims), flattened(&self.y, self.y_num_col_dims));
        self.out = x.matmul(&y);
    }
}
impl Rule<Hlo> for MulGrad<Hlo> {
    fn apply(&mut self) {
        let (x, y) = (flattened(&self.x, self.x_num_col_dims), flattened(&self.y, self.y_num_col_dims));
        let dout = self.dout.reshape(&[x.dims()[0], y.dims()[1]]);
        if let Some(dx) = &mut self.dx {
            *dx = dout.matmul(&y.transposed());
        }
        if let Some(dy) = &mut self.dy {
            *dy = x.transposed().matmul(&dout);
        }
    }
}

impl Rule<Hlo> for Dot<Hlo> {
    fn apply(&mut self) {
        self.out = (&self.x * &self.y).sum(&[self.x.rank() - 1]);
    }
}
impl Rule<Hlo> for DotGrad<Hlo> {
    fn apply(&mut self) {
        let dout = self.dout.spread(self.x.dims(), &[self.x.rank() - 1]);
        if let Some(dx) = &mut self.dx {
            *dx = &dout * &self.y;
        }
        if let Some(dy) = &mut self.dy {
            *dy = &dout * &self.x;
        }
    }
}
