//! Pooling of images.

use autobwd_ops::pool::{Pool2dGrad, Pool2dOp, PoolAttrs, PoolingType};

use super::{conv::spatial, prelude::*};
use crate::lower::Window;

family!(Pool2dGrad, Pool2dOp);

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

/// The numbers that sums of windows are divided by: of elements, or, unless padding is excluded, of these and padding.
fn counts(pool: &PoolAttrs, x: &Hlo, window: &Window) -> Hlo {
    let (mut ones, mut window) = (x.full_like(1.0), window.clone());
    if !pool.exclusive && !pool.adaptive {
        let (mut low, mut high) = (vec![0; 4], vec![0; 4]);
        for (i, axis) in spatial(pool.data_format).into_iter().enumerate() {
            let Ok(windows) = pool.windows(i, x.dims()[axis]) else { continue };
            (low[axis], high[axis]) = (windows.before as i64, windows.after as i64);
            let (before, after) = window.padding[axis];
            window.padding[axis] = (before - low[axis], after - high[axis]);
        }
        ones = ones.pad(&ones.scalar(1.0), &low, &high, &[0; 4]);
    }
    ones.reduce_window(Reduction::Sum, &window)
}

impl Lower for Pool2dOp<Hlo> {
    fn has_form(&self) -> bool {
        self.x.numel() > 0 && windows(&self.pool, &self.x, &self.out).is_some()
    }

    fn lower(&mut self) {
        let Some(window) = windows(&self.pool, &self.x, &self.out) else { return };
        self.out = match self.pool.pooling_type {
            PoolingType::Max => self.x.reduce_window(Reduction::Max, &window),
            PoolingType::Avg => {
                self.x.reduce_window(Reduction::Sum, &window) / counts(&self.pool, &self.x, &window)
            }
        };
    }
}

impl Lower for Pool2dGrad<Hlo> {
    fn has_form(&self) -> bool {
        self.x.numel() > 0 && windows(&self.pool, &self.x, &self.out).is_some()
    }

    fn lower(&mut self) {
        let Some(window) = windows(&self.pool, &self.x, &self.out) else { return };
        self.dx = match self.pool.pooling_type {
            PoolingType::Max => self.x.scatter_to_largest(&self.dout, &window),
            PoolingType::Avg => {
                let each = &self.dout / counts(&self.pool, &self.x, &window);
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
