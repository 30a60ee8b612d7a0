//! Pooling of images.

use autobwd_ops::pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType};

use super::{conv::spatial, prelude::*};
use crate::lower::Window;

rules!(Pool2dGrad, Pool2dOp);

/// The windows over all dimensions of images; adaptive ones only if they are all equal.
fn windows(pool: &PoolAttrs, x: &Hlo, out: &Hlo) -> Option<Window> {
    let mut window = Window::single(4);
    for (i, axis) in spatial(pool.data_format).into_iter().enumerate() {
        let (n, count) = (x.dims()[axis], out.dims()[axis]);
        let (size, stride, before) = if pool.adaptive {
            if count == 0 || n % count != 0 {
                return None;
            }
            (n / count, n / count, 0)
        } else {
            let windows = pool.windows(i, n).ok()?;
            (windows.size, windows.stride, windows.before)
        };
        let covered = (count as i64 - 1) * stride as i64 + size as i64;
        (window.sizes[axis], window.strides[axis]) = (size, stride);
        window.padding[axis] = (before as i64, covered - n as i64 - before as i64);
    }
    Some(window)
}

/// Sums of windows as means, and the gradients of these: each divided by the number of elements that it counts.
fn divided(sums: &Hlo, pool: &PoolAttrs, x: &Hlo, window: &Window) -> Hlo {
    let divided = |sums: Hlo, axis: usize| {
        let (n, size, stride) = (x.dims()[axis], window.sizes[axis], window.strides[axis]);
        let before = window.padding[axis].0.max(0) as usize;
        let count = |i: usize| {
            let start = i * stride;
            let elements = (start + size).saturating_sub(before).min(n) - start.saturating_sub(before).min(n);
            // PaddlePaddle uses the leading padding on both sides here; so do we.
            let padded = size.min((n + 2 * before).saturating_sub(start)).max(1);
            if pool.exclusive || pool.adaptive { elements as f64 } else { padded as f64 }
        };
        let counts: Vec<f64> = (0..sums.dims()[axis]).map(count).collect();
        &sums / sums.vector(sums.dtype(), &counts).broadcast(sums.dims(), &[axis])
    };
    spatial(pool.data_format).into_iter().fold(sums.clone(), divided)
}

impl Rule<Hlo> for Pool2dOp<Hlo> {
    fn fits(&self) -> bool {
        windows(&self.pool, &self.x, &self.out).is_some()
    }

    fn apply(&mut self) {
        if self.x.numel() == 0 {
            self.out = self.out.full_like(0.0);
            return;
        }
        let Some(window) = windows(&self.pool, &self.x, &self.out) else { return };
        self.out = match self.pool.pooling_type {
            PoolingType::Max => self.x.reduce_window(Reduction::Max, &window),
            PoolingType::Avg => {
                let sums = self.x.reduce_window(Reduction::Sum, &window);
                divided(&sums, &self.pool, &self.x, &window)
            }
        };
    }
}

impl Rule<Hlo> for Pool2dGrad<Hlo> {
    fn fits(&self) -> bool {
        windows(&self.pool, &self.x, &self.out).is_some()
    }

    fn apply(&mut self) {
        if self.x.numel() == 0 {
            self.dx = self.dx.full_like(0.0);
            return;
        }
        let Some(window) = windows(&self.pool, &self.x, &self.out) else { return };
        self.dx = match self.pool.pooling_type {
            PoolingType::Max => self.x.scatter_to_largest(&self.dout, &window),
            PoolingType::Avg => {
                let each = divided(&self.dout, &self.pool, &self.x, &window);
                // Each element gets the sum over the windows that contain it: windows over `each`, with zeros between.
                let mut back = Window::single(4);
                for axis in spatial(self.pool.data_format) {
                    let (size, (before, _)) = (window.sizes[axis], window.padding[axis]);
                    let dilated = (each.dims()[axis] as i64 - 1) * window.strides[axis] as i64 + 1;
                    let low = size as i64 - 1 - before;
                    let high = self.x.dims()[axis] as i64 + size as i64 - 1 - dilated - low;
                    back.sizes[axis] = size;
                    back.base_dilations[axis] = window.strides[axis];
                    back.padding[axis] = (low, high);
                }
                each.reduce_window(Reduction::Sum, &back)
            }
        };
    }
}
