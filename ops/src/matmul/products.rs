//! Batched matrix products over the last two dimensions, and their gradients.

use autobwd::{
    Buf, Cx, Dims, Meta, Result,
    op::{Factor, GemmElement, Mat, with_factor},
    tensor::{Dim, OptionalBuf},
};

use crate::kernel_helpers::{KernelFloat, PART, nth};

/// Multiplications from which a single product is shared between threads.
const SHARED: usize = 1 << 20;

/// Infers the dimensions of batched products.
pub(super) fn matmul_dims(x: &Meta, trans_x: bool, y: &Meta, trans_y: bool) -> Result<Dims> {
    x.float()?;
    y.same_dtype(x)?;
    let (x_batch, m, k) = match &*x.dims {
        [] => return Err(x.wrong("a vector or matrices are needed")),
        [k] => (&[][..], None, *k),
        [batch @ .., rows, cols] if trans_x => (batch, Some(*cols), *rows),
        [batch @ .., rows, cols] => (batch, Some(*rows), *cols),
    };
    let (y_batch, k2, n) = match &*y.dims {
        [] => return Err(y.wrong("a vector or matrices are needed")),
        [k] => (&[][..], *k, None),
        [batch @ .., rows, cols] if trans_y => (batch, *cols, Some(*rows)),
        [batch @ .., rows, cols] => (batch, *rows, Some(*cols)),
    };
    if !k.agrees(k2) {
        let when = if trans_y && n.is_some() { " when transposed" } else { "" };
        return Err(y.wrong(&format!("{k} rows are needed{when}")));
    }
    let rank = x_batch.len().max(y_batch.len());
    let dim =
        |batch: &[Dim], i: usize| (i + batch.len()).checked_sub(rank).map_or(Dim::from(1), |i| batch[i]);
    let refuse = || y.wrong(&format!("matrices that broadcast with {} of `{}` are needed", x.dims, x.slot()));
    let batch = (0..rank).map(|i| dim(x_batch, i).broadcast(dim(y_batch, i)).ok_or_else(refuse));
    batch.chain(m.map(Ok)).chain(n.map(Ok)).collect()
}

/// The contracted dimension of a batched product.
pub(super) fn inner_dim(x: &Meta, trans_x: bool) -> Dim {
    match &*x.dims {
        [.., rows, _] if trans_x => *rows,
        [.., last] => *last,
        [] => Dim::UNKNOWN,
    }
}

/// `out = alpha * x · y`.
pub(super) fn multiply(
    cx: &Cx,
    [x, y]: [&Buf<'_>; 2],
    [trans_x, trans_y]: [bool; 2],
    alpha: f32,
    out: &mut Buf<'_>,
) -> Result<()> {
    with_factor!(x, T => {
        let all = Products::<T>::new((x.slice()?, x.dims()), trans_x, (y.slice()?, y.dims()), trans_y);
        let out = out.slice_mut()?;
        all.each(cx, out, |i, out| {
            let (x, y) = all.at(i);
            cx.product(out, false, all.x.matrix(x), all.y.matrix(y))
        })?;
        scale(cx, out, alpha);
        Ok(())
    })
}

/// `dx = alpha * dout · yᵀ`, `dy = alpha * xᵀ · dout`.
pub(super) fn multiply_grad(
    cx: &Cx,
    [x, y]: [&Buf<'_>; 2],
    [trans_x, trans_y]: [bool; 2],
    alpha: f32,
    dout: &Buf<'_>,
    [dx, dy]: [&mut Option<Buf<'_>>; 2],
) -> Result<()> {
    with_factor!(dout, T => {
        let all = Products::<T>::new((x.slice()?, x.dims()), trans_x, (y.slice()?, y.dims()), trans_y);
        let dout = dout.slice::<T>()?;
        if let Some(dx) = dx.slice_mut()? {
            all.left_gradient(cx, dout, dx)?;
            scale(cx, dx, alpha);
        }
        if let Some(dy) = dy.slice_mut()? {
            all.right_gradient(cx, dout, dy)?;
            scale(cx, dy, alpha);
        }
        Ok(())
    })
}

/// `x = alpha * x`
pub(super) fn scale<T: KernelFloat>(cx: &Cx, x: &mut [T], alpha: f32) {
    let alpha = T::of(alpha.into());
    if alpha != T::of(1.0) {
        cx.chunks_mut(x, PART, |_, x| x.iter_mut().for_each(|x| *x = alpha * *x));
    }
}

/// Both factors of broadcast products.
pub(super) struct Products<'a, T> {
    pub(super) x: Matrices<'a, T>,
    pub(super) y: Matrices<'a, T>,
}

/// The matrices of one factor, in memory order.
pub(super) struct Matrices<'a, T> {
    data: &'a [T],
    batch: &'a [usize],
    rows: usize,
    cols: usize,
    transposed: bool,
}

impl<'a, T: Factor> Products<'a, T> {
    /// From elements with their dimensions.
    pub(super) fn new(
        x: (&'a [T], &'a [usize]),
        trans_x: bool,
        y: (&'a [T], &'a [usize]),
        trans_y: bool,
    ) -> Products<'a, T> {
        let (data, vector) = (x.0, x.1.len() < 2);
        let mut x = match x.1 {
            [batch @ .., rows, cols] => {
                Matrices { data, batch, rows: *rows, cols: *cols, transposed: trans_x }
            }
            _ => Matrices { data, batch: &[], rows: 1, cols: data.len(), transposed: false },
        };
        let data = y.0;
        let mut y = match y.1 {
            [batch @ .., rows, cols] => {
                Matrices { data, batch, rows: *rows, cols: *cols, transposed: trans_y }
            }
            _ => Matrices { data, batch: &[], rows: data.len(), cols: 1, transposed: false },
        };
        // One matrix on the right and contiguous rows on the left make one product.
        if !vector && !x.transposed && y.count() == 1 {
            x.rows *= x.count();
            (x.batch, y.batch) = (&[], &[]);
        }
        Products { x, y }
    }

    /// The `i`-th of the products, or of their gradients.
    fn nth_of(&self, out: &'a [T], i: usize) -> Mat<'a, T> {
        let (rows, cols) = self.out_shape();
        Mat { data: nth(out, i, rows * cols), rows, cols, transposed: false }
    }

    /// Calls `product(i, out)` for every product, with its part of `out`. Products that are too small to be shared
    /// themselves run in parallel.
    pub(super) fn each(
        &self,
        cx: &Cx,
        out: &mut [T::Sum],
        product: impl Fn(usize, &mut [T::Sum]) -> Result<()> + Sync,
    ) -> Result<()> {
        let count = self.count();
        if count == 1 {
            return product(0, out);
        }
        // Empty products have no part of `out`.
        let len = (out.len() / count.max(1)).max(1);
        let some = |first: usize, out: &mut [T::Sum]| {
            (first..).zip(out.chunks_mut(len)).try_for_each(|(i, out)| product(i, out))
        };
        let work = self.x.len().saturating_mul(self.out_shape().1).max(1);
        let share = if work < SHARED { SHARED / work } else { count };
        match share < count {
            true => cx.try_chunks_mut(out, share * len, &mut [(); 0], |part, out, _| some(part * share, out)),
            false => some(0, out),
        }
    }

    /// `dx = dout · yᵀ`.
    pub(super) fn left_gradient(&self, cx: &Cx, dout: &'a [T], dx: &mut [T::Sum]) -> Result<()> {
        let term = |i: usize, y: usize| {
            let (dout, y) = (self.nth_of(dout, i), self.y.matrix(y));
            if self.x.transposed { (y, dout.t()) } else { (dout, y.t()) }
        };
        if self.start_sums(dx, &self.x) {
            return (0..self.count()).try_for_each(|i| {
                let (x, y) = self.at(i);
                let (left, right) = term(i, y);
                cx.product(nth_mut(dx, x, self.x.len()), true, left, right)
            });
        }
        self.each(cx, dx, |i, dx| {
            let (left, right) = term(i, self.at(i).1);
            cx.product(dx, false, left, right)
        })
    }

    /// `dy = xᵀ · dout`.
    pub(super) fn right_gradient(&self, cx: &Cx, dout: &'a [T], dy: &mut [T::Sum]) -> Result<()> {
        if self.start_sums(dy, &self.y) {
            return self.right_gradients(dout, |y, left, right| {
                cx.product(nth_mut(dy, y, self.y.len()), true, left, right)
            });
        }
        self.each(cx, dy, |i, dy| {
            let (left, right) = self.right_term(dout, i);
            cx.product(dy, false, left, right)
        })
    }

    /// Calls `add(i, left, right)` for all products whose sum is `dy = xᵀ · dout`, with the index of the matrix that
    /// each adds to.
    pub(super) fn right_gradients(
        &self,
        dout: &'a [T],
        mut add: impl FnMut(usize, Mat<'a, T>, Mat<'a, T>) -> Result<()>,
    ) -> Result<()> {
        for i in 0..self.count() {
            let (left, right) = self.right_term(dout, i);
            add(self.at(i).1, left, right)?;
        }
        Ok(())
    }

    fn right_term(&self, dout: &'a [T], i: usize) -> (Mat<'a, T>, Mat<'a, T>) {
        let (dout, x) = (self.nth_of(dout, i), self.x.matrix(self.at(i).0));
        if self.y.transposed { (dout.t(), x) } else { (x.t(), dout) }
    }

    /// Rows and columns of one product.
    pub(super) fn out_shape(&self) -> (usize, usize) {
        let (x, y) = (&self.x, &self.y);
        (if x.transposed { x.cols } else { x.rows }, if y.transposed { y.rows } else { y.cols })
    }

    /// Batch dimensions of both factors, the last first.
    fn batch(&self) -> impl Iterator<Item = (usize, usize)> {
        let rank = self.x.batch.len().max(self.y.batch.len());
        let dim = |batch: &[usize], i: usize| batch.len().checked_sub(i + 1).map_or(1, |i| batch[i]);
        (0..rank).map(move |i| (dim(self.x.batch, i), dim(self.y.batch, i)))
    }

    pub(super) fn count(&self) -> usize {
        self.batch().map(|(x, y)| if x == 1 { y } else { x }).product()
    }

    /// The indices of the two matrices of the `i`-th product.
    pub(super) fn at(&self, mut i: usize) -> (usize, usize) {
        let (mut at, mut stride) = ((0, 0), (1, 1));
        for (x, y) in self.batch() {
            let n = if x == 1 { y } else { x };
            if x != 1 {
                at.0 += i % n * stride.0;
            }
            if y != 1 {
                at.1 += i % n * stride.1;
            }
            i /= n;
            stride = (stride.0 * x, stride.1 * y);
        }
        at
    }

    /// Zeroes a gradient that several products add to; returns whether it is one.
    pub(super) fn start_sums(&self, grads: &mut [T::Sum], of: &Matrices<'_, T>) -> bool {
        let shared = of.count() != self.count();
        if shared {
            grads.fill(T::Sum::ZERO);
        }
        shared
    }
}
impl<'a, T> Matrices<'a, T> {
    pub(super) fn len(&self) -> usize {
        self.rows * self.cols
    }

    pub(super) fn count(&self) -> usize {
        self.batch.iter().product()
    }

    /// The `i`-th matrix.
    pub(super) fn matrix(&self, i: usize) -> Mat<'a, T> {
        let Matrices { rows, cols, transposed, .. } = *self;
        Mat { data: nth(self.data, i, self.len()), rows, cols, transposed }
    }
}

pub(super) fn nth_mut<T>(all: &mut [T], i: usize, len: usize) -> &mut [T] {
    &mut all[i * len..][..len]
}
