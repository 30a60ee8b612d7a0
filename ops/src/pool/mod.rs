//! Pooling of images: every window becomes one number.

mod halves;
mod windows;

use autobwd::{
    Buf, Cx, GradCx, GradRule, Infer, Kernel, Meta, Result, Var, check::*, register_op, with_float,
};

use crate::{common::nth, image::PaddingAlgorithm, norm::DataLayout};
use windows::{Attrs, attrs, with_attrs};

autobwd::attr_enum! {
    /// What becomes of a window.
    pub enum PoolingType {
        /// Its largest element.
        Max = "max",
        /// The mean of its elements.
        Avg = "avg",
    }
}

/// The largest element or the mean of every window, channel by channel.
///
/// What is over the edges is left out. NaN counts as larger than all.
#[register_op(grad = Pool2dGrad)]
pub struct Pool2d<V = Var> {
    /// Images, in the order that `data_format` says.
    #[input]
    pub x: V,
    /// As many images and channels, with an element for each window.
    #[output]
    pub out: V,
    /// Height and width of a window; with `adaptive`, of the output.
    #[attr]
    pub ksize: Vec<i32>,
    /// From one window to the next, down and across.
    #[attr(default = [1, 1])]
    pub strides: Vec<i32>,
    /// How far windows reach over the edges: down and across, or top, bottom, left and right.
    #[attr(default = [0, 0])]
    pub paddings: Vec<i32>,
    /// Whether `paddings` counts.
    #[attr(default = PaddingAlgorithm::Explicit)]
    pub padding_algorithm: PaddingAlgorithm,
    /// What becomes of a window.
    #[attr]
    pub pooling_type: PoolingType,
    /// One window more where the others do not reach the end.
    #[attr(default = false)]
    pub ceil_mode: bool,
    /// A mean is that of the elements there are. Otherwise paddings count as zeros, below and on the right no more than
    /// above and on the left.
    #[attr(default = true)]
    pub exclusive: bool,
    /// One window, the whole image; `ksize` and `paddings` do not count.
    #[attr(default = false)]
    pub global_pooling: bool,
    /// Windows that share the image out evenly, `ksize` of them; `strides` and `paddings` do not count.
    #[attr(default = false)]
    pub adaptive: bool,
    /// Order of the dimensions of images.
    #[attr(default = DataLayout::Nchw)]
    pub data_format: DataLayout,
}
impl Infer for Pool2d<Meta> {
    fn infer(&mut self) -> Result<()> {
        let dims = attrs!(self).pooled(&self.x)?;
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Kernel for Pool2d<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = attrs!(self).pooling(&self.x, &self.out)?;
        let ([x_len, out_len], kind) = (pooling.lens(), self.pooling_type);
        with_float!(self.x, T => {
            let x = self.x.slice::<T>()?;
            pooling.each_plane(cx, (self.out.slice_mut::<T>()?, out_len), 0, |plane, out, _| {
                let x = nth(x, plane, x_len);
                match kind {
                    PoolingType::Max if pooling.halves() => pooling.maxima(x, out),
                    PoolingType::Max => {
                        out.fill(T::NEG_INFINITY);
                        pooling.strips(|strip| strip.gather(x, out, |x, out| {
                            for x in x {
                                *out = if *x > *out || x.is_nan() { *x } else { *out };
                            }
                        }));
                    }
                    PoolingType::Avg => {
                        out.fill(0.0);
                        pooling.strips(|strip| strip.gather(x, out, |x, out| *out += x.iter().sum::<T>()));
                        pooling.divide(out);
                    }
                }
            })
        })
    }
}
autobwd::samples!(
    Pool2d,
    [
        pool(PoolingType::Max, distinct([2, 3, 5, 4]), [2, 3]),
        pool(PoolingType::Avg, uniform([2, 3, 5, 4]), [2, 3]),
        nhwc(pool(PoolingType::Max, distinct([2, 5, 4, 3]), [2, 3])),
        nhwc(pool(PoolingType::Avg, uniform([2, 5, 4, 3]), [2, 3])),
        Pool2d { strides: vec![2, 2], ..pool(PoolingType::Max, distinct([2, 3, 6, 4]), [2, 2]) },
        Pool2d { strides: vec![2, 2], ..pool(PoolingType::Max, distinct([2, 3, 6, 16]), [2, 2]) },
        Pool2d { strides: vec![3, 2], ..pool(PoolingType::Max, distinct([1, 2, 7, 5]), [2, 3]) },
        Pool2d { strides: vec![3, 2], ..nhwc(pool(PoolingType::Avg, uniform([1, 7, 5, 2]), [2, 3])) },
        Pool2d { paddings: vec![1, 2], ..pool(PoolingType::Max, distinct([1, 2, 5, 4]), [2, 3]) },
        Pool2d { paddings: vec![1, 0, 2, 3], ..pool(PoolingType::Max, distinct([1, 2, 3, 4]), [2, 5]) },
        Pool2d { paddings: vec![1, 2], ..pool(PoolingType::Avg, uniform([1, 2, 5, 4]), [2, 3]) },
        Pool2d {
            paddings: vec![1, 2],
            exclusive: false,
            ..pool(PoolingType::Avg, uniform([1, 2, 5, 4]), [2, 3])
        },
        Pool2d {
            paddings: vec![0, 2, 2, 1],
            exclusive: false,
            ..nhwc(pool(PoolingType::Avg, uniform([1, 5, 4, 2]), [3, 4]))
        },
        Pool2d {
            ceil_mode: true,
            strides: vec![2, 3],
            ..pool(PoolingType::Max, distinct([1, 2, 6, 8]), [3, 4])
        },
        Pool2d {
            ceil_mode: true,
            strides: vec![2, 3],
            paddings: vec![1, 0],
            exclusive: false,
            ..pool(PoolingType::Avg, uniform([1, 2, 6, 8]), [3, 4])
        },
        Pool2d {
            padding_algorithm: PaddingAlgorithm::Same,
            strides: vec![2, 1],
            paddings: vec![7, 7],
            ..pool(PoolingType::Avg, uniform([1, 2, 5, 4]), [3, 2])
        },
        Pool2d {
            padding_algorithm: PaddingAlgorithm::Valid,
            paddings: vec![7, 7],
            ..pool(PoolingType::Max, distinct([1, 2, 5, 4]), [3, 2])
        },
        Pool2d {
            global_pooling: true,
            paddings: vec![7, 7],
            ..pool(PoolingType::Max, distinct([2, 3, 5, 4]), [-1, -1])
        },
        Pool2d { global_pooling: true, ..nhwc(pool(PoolingType::Avg, uniform([2, 5, 4, 3]), [1, 1])) },
        Pool2d {
            adaptive: true,
            paddings: vec![7, 7],
            ..pool(PoolingType::Max, distinct([1, 2, 7, 5]), [3, 4])
        },
        Pool2d { adaptive: true, exclusive: false, ..pool(PoolingType::Avg, uniform([1, 2, 7, 5]), [3, 6]) },
        Pool2d { adaptive: true, ..nhwc(pool(PoolingType::Avg, uniform([1, 7, 5, 2]), [3, 4])) },
        Pool2d {
            adaptive: true,
            global_pooling: true,
            ..pool(PoolingType::Max, distinct([1, 2, 3, 4]), [1, 1])
        },
        // Windows of nothing but padding.
        Pool2d {
            paddings: vec![2, 0, 0, 3],
            exclusive: false,
            ..pool(PoolingType::Avg, uniform([1, 2, 5, 4]), [2, 1])
        },
        pool(PoolingType::Max, distinct([0, 3, 5, 4]), [2, 3]),
        nhwc(pool(PoolingType::Avg, uniform([2, 5, 4, 0]), [2, 3])),
        Sample::not_a_derivative(
            pool(PoolingType::Max, given([1, 1, 2, 3], [1.0, 2.0, 2.0, 2.0, 0.0, 2.0]), [2, 2]),
            "the first of equal elements gets the whole gradient"
        ),
        Sample::not_a_derivative(
            pool(PoolingType::Max, given([1, 1, 2, 3], [f64::NAN, 2.0, 1.0, 0.0, 3.0, 4.0]), [2, 2]),
            "NaN has none"
        ),
        Sample::not_a_derivative(
            pool(PoolingType::Max, given([1, 1, 2, 1], [f64::NEG_INFINITY, f64::NEG_INFINITY]), [2, 1]),
            "infinity does not change"
        ),
        Sample::fails(pool(PoolingType::Max, distinct([2, 3, 5]), [2, 3]), "`X`: 4 dimensions are needed",),
        Sample::fails(
            pool(PoolingType::Max, integers_below(9, [2, 3, 5, 4]), [2, 3]),
            "`X`: floating point numbers are needed",
        ),
        Sample::fails(
            pool(PoolingType::Max, distinct([2, 3, 5, 4]), [6, 3]),
            "`X`: at least 6 rows and columns are needed for a window",
        ),
        Sample::fails(
            pool(PoolingType::Max, distinct([2, 3, 0, 4]), [2, 3]),
            "`X`: at least 2 rows and columns are needed for a window",
        ),
        Sample::fails(
            Pool2d { global_pooling: true, ..pool(PoolingType::Avg, distinct([2, 3, 0, 4]), [2, 3]) },
            "`X`: at least 1 rows and columns are needed for a window",
        ),
        Sample::fails(
            Pool2d { paddings: vec![0, 3], ..pool(PoolingType::Max, distinct([2, 3, 5, 4]), [2, 3]) },
            "`X`: a window would hold nothing but padding",
        ),
        Sample::fails(
            Pool2d {
                ceil_mode: true,
                strides: vec![1, 3],
                ..pool(PoolingType::Avg, uniform([1, 2, 4, 3]), [2, 1])
            },
            "`X`: a window would hold nothing but padding",
        ),
        Sample::fails(
            pool(PoolingType::Max, distinct([2, 3, 5, 4]), [0, 3]),
            "attribute `ksize`: 2 numbers of at least 1 are needed, not [0, 3]",
        ),
        Sample::fails(
            Pool2d { strides: vec![0, 1], ..pool(PoolingType::Max, distinct([2, 3, 5, 4]), [2, 3]) },
            "attribute `strides`: 2 numbers of at least 1 are needed, not [0, 1]",
        ),
        Sample::fails(
            Pool2d { paddings: vec![1], ..pool(PoolingType::Max, distinct([2, 3, 5, 4]), [2, 3]) },
            "attribute `paddings`: 2 or 4 numbers of at least 0 are needed, not [1]",
        ),
    ]
);

fn pool(pooling_type: PoolingType, x: Draw, ksize: [i32; 2]) -> Pool2d<Draw> {
    Pool2d {
        x,
        out: out(),
        ksize: ksize.to_vec(),
        strides: vec![1, 1],
        paddings: vec![0, 0],
        padding_algorithm: PaddingAlgorithm::Explicit,
        pooling_type,
        ceil_mode: false,
        exclusive: true,
        global_pooling: false,
        adaptive: false,
        data_format: DataLayout::Nchw,
    }
}

fn nhwc(pool: Pool2d<Draw>) -> Pool2d<Draw> {
    Pool2d { data_format: DataLayout::Nhwc, ..pool }
}

/// Of a maximum, `dx = dout` for the first of the largest elements of a window, row by row; of a mean, `dx = dout / n` for
/// all `n` elements. Where windows meet, the sum.
#[register_op(grad_of = Pool2d, grad = Pool2dGradRule)]
pub struct Pool2dGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub dout: V,
    #[output]
    pub dx: V,
    pub ksize: Vec<i32>,
    pub strides: Vec<i32>,
    pub paddings: Vec<i32>,
    pub padding_algorithm: PaddingAlgorithm,
    pub pooling_type: PoolingType,
    pub ceil_mode: bool,
    pub exclusive: bool,
    pub global_pooling: bool,
    pub adaptive: bool,
    pub data_format: DataLayout,
}
impl Infer for Pool2dGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        attrs!(self).check(&self.x, &self.out)?;
        self.dout.same_as(&self.out)?;
        self.dx.like(&self.x);
        Ok(())
    }
}
impl Kernel for Pool2dGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = attrs!(self).pooling(&self.x, &self.out)?;
        let ([x_len, out_len], kind) = (pooling.lens(), self.pooling_type);
        with_float!(self.dout, T => {
            let (x, out, dout) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.dout.slice::<T>()?);
            pooling.each_plane(cx, (self.dx.slice_mut::<T>()?, x_len), out_len, |plane, dx, left| {
                let (x, out, dout) =
                    (nth(x, plane, x_len), nth(out, plane, out_len), nth(dout, plane, out_len));
                if kind == PoolingType::Max && pooling.halves() {
                    return pooling.to_maxima(dx, x, out, dout);
                }
                dx.fill(0.0);
                left.copy_from_slice(dout);
                match kind {
                    PoolingType::Max => pooling.strips(|strip| {
                        strip.scatter((dx, x), (out, left), |dx, x, out, left| {
                            for (dx, x) in dx.iter_mut().zip(x) {
                                let first = *x == out;
                                *dx += if first { *left } else { 0.0 };
                                *left = if first { 0.0 } else { *left };
                            }
                        });
                    }),
                    PoolingType::Avg => {
                        pooling.divide(left);
                        pooling.strips(|strip| {
                            strip.scatter((dx, x), (out, left), |dx, _, _, left| {
                                dx.iter_mut().for_each(|dx| *dx += *left);
                            });
                        });
                    }
                }
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let pooling = attrs!(self).pooling(&self.x, &self.out);
        pooling.map_or(0, |pooling| pooling.lens()[1] * workers * self.x.dtype().size())
    }
}

/// `ddout` = `pool2d` of `ddx`, or of a maximum, what `ddx` is for the first of the largest elements.
pub struct Pool2dGradRule;
impl GradRule<Pool2dGrad> for Pool2dGradRule {
    fn emit(fwd: &Pool2dGrad, g: &mut GradCx<'_>) {
        let Pool2dGrad { x, out, dout, dx, .. } = *fwd;
        let ddx = g.grad(dx);
        let Some(ddout) = g.wanted(dout) else { return };
        match fwd.pooling_type {
            PoolingType::Max => {
                g.push(with_attrs!(Pool2dGradGrad { x: x, out: out, ddx: ddx, ddout: ddout }, fwd))
            }
            PoolingType::Avg => g.push(with_attrs!(Pool2d { x: ddx, out: ddout }, fwd)),
        }
    }
}

/// `ddout` = what `ddx` is for the first of the largest elements of each window; 0 for NaN.
#[register_op(grad_of = Pool2dGrad, grad = Pool2dGradGradRule)]
pub struct Pool2dGradGrad<V = Var> {
    pub x: V,
    pub out: V,
    pub ddx: V,
    #[output]
    pub ddout: V,
    pub ksize: Vec<i32>,
    pub strides: Vec<i32>,
    pub paddings: Vec<i32>,
    pub padding_algorithm: PaddingAlgorithm,
    pub pooling_type: PoolingType,
    pub ceil_mode: bool,
    pub exclusive: bool,
    pub global_pooling: bool,
    pub adaptive: bool,
    pub data_format: DataLayout,
}
impl Infer for Pool2dGradGrad<Meta> {
    fn infer(&mut self) -> Result<()> {
        attrs!(self).check(&self.x, &self.out)?;
        self.ddx.same_as(&self.x)?;
        self.ddout.like(&self.out);
        Ok(())
    }
}
impl Kernel for Pool2dGradGrad<Buf<'_>> {
    fn run(&mut self, cx: &Cx) -> Result<()> {
        let pooling = attrs!(self).pooling(&self.x, &self.out)?;
        let [x_len, out_len] = pooling.lens();
        with_float!(self.x, T => {
            let (x, out, ddx) = (self.x.slice::<T>()?, self.out.slice::<T>()?, self.ddx.slice::<T>()?);
            pooling.each_plane(cx, (self.ddout.slice_mut::<T>()?, out_len), out_len, |plane, ddout, left| {
                let (x, out, ddx) = (nth(x, plane, x_len), nth(out, plane, out_len), nth(ddx, plane, x_len));
                ddout.fill(0.0);
                left.fill(1.0);
                pooling.strips(|strip| {
                    for (k, at) in strip.out().enumerate() {
                        for (x, ddx) in x[strip.under(k)].iter().zip(&ddx[strip.under(k)]) {
                            if *x == out[at] && left[at] > 0.0 {
                                (ddout[at], left[at]) = (*ddx, 0.0);
                            }
                        }
                    }
                });
            })
        })
    }

    fn scratch_bytes(&self, workers: usize) -> usize {
        let pooling = attrs!(self).pooling(&self.x, &self.out);
        pooling.map_or(0, |pooling| pooling.lens()[1] * workers * self.x.dtype().size())
    }
}

/// `dddx = pool2d_grad` of the gradient of `ddout`.
pub struct Pool2dGradGradRule;
impl GradRule<Pool2dGradGrad> for Pool2dGradGradRule {
    fn emit(fwd: &Pool2dGradGrad, g: &mut GradCx<'_>) {
        let Pool2dGradGrad { x, out, ddx, ddout, .. } = *fwd;
        let dout = g.grad(ddout);
        if let Some(dx) = g.wanted(ddx) {
            g.push(with_attrs!(Pool2dGrad { x: x, out: out, dout: dout, dx: dx }, fwd));
        }
    }
}
