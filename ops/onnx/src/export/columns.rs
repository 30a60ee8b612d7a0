//! Windows of images as columns, as convolutions with filters that select an element each.

use autobwd::{DType, Result, Tensor, program::Var};
use autobwd_ops::image::{Fold, FoldGrad, Unfold, UnfoldGrad, WindowAttrs};

use super::{
    ExportOp, ExportRule,
    conv::{Images, OnnxWindows},
    dims::OnnxDim,
    linear::without_zeros,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Fold>(), rule::<FoldGrad>(), rule::<Unfold>(), rule::<UnfoldGrad>()]
}

/// Windows over images of that many channels.
struct WindowColumns {
    windows: OnnxWindows,
    channels: i64,
}

impl WindowColumns {
    fn of(window: &WindowAttrs, channels: i64) -> WindowColumns {
        let pair = |numbers: &[i32]| [0, 1].map(|i| numbers.get(i).map_or(1, |n| i64::from(*n)));
        let windows = OnnxWindows {
            kernel: pair(&window.kernel_sizes),
            strides: pair(&window.strides),
            dilations: pair(&window.dilations),
            pads: [0, 1, 2, 3].map(|i| window.paddings.get(i).map_or(0, |n| i64::from(*n))),
        };
        WindowColumns { windows, channels }
    }

    /// Elements of a column.
    fn width(&self) -> i64 {
        self.channels * self.windows.kernel.iter().product::<i64>()
    }

    /// For each channel, a filter for each element of a window, `[channels * taps, 1, height, width]`.
    fn filter(&self, graph: &mut OnnxGraph<'_>, dtype: DType) -> Result<OnnxValue> {
        let [height, width] = self.windows.kernel.map(|n| n as usize);
        let taps = height * width;
        let is_own = |i: usize| f64::from(u8::from(i / taps % taps == i % taps));
        let elements = (0..self.width() as usize * taps).map(is_own).collect();
        let filter = graph.tensor(&Tensor::from_vec([self.width() as usize, 1, height, width], elements)?);
        Ok(graph.cast(filter, dtype))
    }

    /// `columns` = the windows of `images`.
    fn unfold(&self, graph: &mut OnnxGraph<'_>, [images, columns]: [Var; 2]) -> Result<()> {
        let (x, dtype) = (graph.read(images)?, graph.dtype(images)?);
        let filter = self.filter(graph, dtype)?;
        let mut attrs = self.windows.attrs();
        attrs.push(("group", NodeAttr::Int(self.channels)));
        let value = without_zeros(graph, x, dtype, |graph, x| Ok(graph.op("Conv", &[x, filter], &attrs)))?;
        let count = match graph.shape(columns)?[..] {
            [.., count] if count >= 0 => OnnxDim::Known(count),
            _ => OnnxDim::Of(value, 2, 4),
        };
        let images = graph.merged_dims(images, 0, 1)?;
        let value = graph.reshape_to(value, &[images, OnnxDim::Known(self.width()), count])?;
        graph.write(columns, value);
        Ok(())
    }

    /// `images`, of that height and width, = the sum of the elements that `columns` has for each.
    fn fold(&self, graph: &mut OnnxGraph<'_>, [columns, images]: [Var; 2], size: [i64; 2]) -> Result<()> {
        let (x, dtype) = (graph.read(columns)?, graph.dtype(columns)?);
        let filter = self.filter(graph, dtype)?;
        let OnnxWindows { kernel, strides, dilations, pads } = self.windows;
        let count = |i: usize| {
            let extent = (kernel[i] - 1) * dilations[i] + 1;
            OnnxDim::Known((size[i] + pads[i] + pads[2 + i] - extent) / strides[i] + 1)
        };
        let batch = graph.merged_dims(columns, 0, 1)?;
        let dims = [batch, OnnxDim::Known(self.width()), count(0), count(1)];
        let value = graph.reshape_to(x, &dims)?;
        let size = size.map(OnnxDim::Known);
        let value = without_zeros(graph, value, dtype, |graph, value| {
            self.windows.transpose(graph, &Images { value, dims }, filter, size, self.channels)
        })?;
        graph.write(images, value);
        Ok(())
    }
}

impl ExportOp for Unfold {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let columns = WindowColumns::of(&self.window, graph.dim(self.x, 1)?);
        columns.unfold(graph, [self.x, self.y])
    }
}
impl ExportOp for UnfoldGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let columns = WindowColumns::of(&self.window, graph.dim(self.x, 1)?);
        let size = [graph.dim(self.x, 2)?, graph.dim(self.x, 3)?];
        columns.fold(graph, [self.dy, self.dx], size)
    }
}
impl ExportOp for Fold {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let columns = WindowColumns::of(&self.window, graph.dim(self.y, 1)?);
        let size = [graph.dim(self.y, 2)?, graph.dim(self.y, 3)?];
        columns.fold(graph, [self.x, self.y], size)
    }
}
impl ExportOp for FoldGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let columns = WindowColumns::of(&self.window, graph.dim(self.dy, 1)?);
        columns.unfold(graph, [self.dy, self.dx])
    }
}
