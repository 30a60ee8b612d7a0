use autobwd::{Expr, New, emit};

use crate::pool::{self, PoolAttrs, PoolingType};

/// Max or average pooling of images in layout `NCHW`.
///
/// ```
/// use autobwd::{Builder, DType};
/// use autobwd_ops::nn::Pool2d;
/// let net = Builder::new();
/// let x = net.input("x", DType::F32, &[-1, 3, 32, 32]);
/// let halved = Pool2d::max(3).stride(2).padding(1).forward(&x);
/// assert_eq!(halved.dims().to_string(), "[-1, 3, 16, 16]");
/// let means = Pool2d::average(1).adaptive().forward(&halved);
/// assert_eq!(means.dims().to_string(), "[-1, 3, 1, 1]");
/// ```
#[derive(Clone, Debug)]
pub struct Pool2d {
    kind: PoolingType,
    size: [i32; 2],
    stride: Option<i32>,
    padding: i32,
    ceil: bool,
    exclusive: bool,
    adaptive: bool,
}

impl Pool2d {
    /// Max pooling with windows of `size` by `size` elements and stride `size`.
    pub fn max(size: i32) -> Pool2d {
        Pool2d::new(PoolingType::Max, size)
    }

    /// Average pooling with windows of `size` by `size` elements and stride `size`.
    pub fn average(size: i32) -> Pool2d {
        Pool2d::new(PoolingType::Avg, size)
    }

    fn new(kind: PoolingType, size: i32) -> Pool2d {
        let (size, stride, padding) = ([size; 2], None, 0);
        Pool2d { kind, size, stride, padding, ceil: false, exclusive: true, adaptive: false }
    }

    /// Sets rows and columns of the windows.
    #[must_use]
    pub fn size(self, rows: i32, columns: i32) -> Pool2d {
        Pool2d { size: [rows, columns], ..self }
    }

    /// Sets the stride of the windows.
    #[must_use]
    pub fn stride(self, stride: i32) -> Pool2d {
        Pool2d { stride: Some(stride), ..self }
    }

    /// Sets the padding on all sides.
    #[must_use]
    pub fn padding(self, padding: i32) -> Pool2d {
        Pool2d { padding, ..self }
    }

    /// Adds a partial window at the end, where the others do not reach it (`ceil_mode`).
    #[must_use]
    pub fn ceil(self) -> Pool2d {
        Pool2d { ceil: true, ..self }
    }

    /// Counts padding as zeros in averages.
    #[must_use]
    pub fn counting_padding(self) -> Pool2d {
        Pool2d { exclusive: false, ..self }
    }

    /// Adaptive pooling: the size becomes the number of windows, which divide the image evenly.
    #[must_use]
    pub fn adaptive(self) -> Pool2d {
        Pool2d { adaptive: true, ..self }
    }

    /// The pooled `x`, one element for each window. Fails for another rank or dtype, for images that are too small, and
    /// for sizes below 1.
    #[track_caller]
    pub fn forward(&self, x: &Expr) -> Expr {
        let strides = match self.stride {
            Some(stride) => vec![stride; 2],
            None => self.size.to_vec(),
        };
        let op = pool::Pool2dOp {
            x: x.into(),
            out: New,
            pool: PoolAttrs::new(self.kind, self.size.to_vec())
                .strides(strides)
                .paddings(vec![self.padding; 2])
                .ceil_mode(self.ceil)
                .exclusive(self.exclusive)
                .adaptive(self.adaptive),
        };
        emit(op).out
    }
}
