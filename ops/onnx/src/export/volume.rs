//! Padding of volumes.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::image::{Pad3d, Pad3dGrad, PadMode, VolumeLayout};

use super::{
    ExportOp, ExportRule,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<Pad3d>(), rule::<Pad3dGrad>()]
}

/// Padding of depth, height and width.
struct VolumePads {
    before: [i64; 3],
    after: [i64; 3],
    axes: [i64; 3],
    mode: PadMode,
}

impl VolumePads {
    /// From the numbers for width, height and depth, each before and after.
    fn of(tensor: Option<Var>, pads: &[i32], format: VolumeLayout, mode: PadMode) -> Result<VolumePads> {
        let &[left, right, top, bottom, front, back] = pads else {
            return Err(Error::new(ErrorKind::Format, "padding of volumes needs six numbers"));
        };
        if tensor.is_some() {
            return Err(Error::new(ErrorKind::Format, "padding from a tensor has no form in ONNX"));
        }
        let axes = if format == VolumeLayout::Ndhwc { [1, 2, 3] } else { [2, 3, 4] };
        let [before, after] = [[front, top, left], [back, bottom, right]].map(|pads| pads.map(i64::from));
        Ok(VolumePads { before, after, axes, mode })
    }

    /// A node `Pad`; `sign` −1 removes padding. `of` is a variable of the shape of `x`.
    fn pad(
        &self,
        graph: &mut OnnxGraph<'_>,
        (x, of): (OnnxValue, Var),
        sign: i64,
        element: Option<OnnxValue>,
    ) -> Result<OnnxValue> {
        let mode = match self.mode {
            PadMode::Constant => "constant",
            PadMode::Reflect => "reflect",
            PadMode::Replicate => "edge",
            PadMode::Circular => return self.wrapped(graph, x, of),
        };
        let pads: Vec<i64> = self.before.iter().chain(&self.after).map(|pad| sign * pad).collect();
        let operands = [Some(x), Some(graph.ints(&pads)?), element, Some(graph.ints(&self.axes)?)];
        let [value] = graph.nodes("Pad", &operands, &[("mode", NodeAttr::Text(mode))]);
        Ok(value)
    }

    /// Circular padding, which `Pad` has from version 19 on. `of` is a variable of the shape of `x`.
    fn wrapped(&self, graph: &mut OnnxGraph<'_>, x: OnnxValue, of: Var) -> Result<OnnxValue> {
        let mut value = x;
        for ((before, after), axis) in self.before.iter().zip(&self.after).zip(self.axes) {
            // Padding may be longer than the axis.
            let length = graph.dim(of, axis as usize)?.max(1);
            let axes = graph.ints(&[axis])?;
            let slice = |start: i64, end: i64| {
                let (start, end) = (graph.ints(&[start])?, graph.ints(&[end])?);
                Ok::<_, Error>(graph.op("Slice", &[value, start, end, axes], &[]))
            };
            let mut parts = vec![value; (1 + before / length + after / length) as usize];
            if before % length > 0 {
                parts.insert(0, slice(-(before % length), i64::MAX)?);
            }
            if after % length > 0 {
                parts.push(slice(0, after % length)?);
            }
            if parts.len() > 1 {
                value = graph.op("Concat", &parts, &[("axis", NodeAttr::Int(axis))]);
            }
        }
        Ok(value)
    }
}

impl ExportOp for Pad3d {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let pads = VolumePads::of(self.paddings_tensor, &self.paddings, self.data_format, self.mode)?;
        let element = graph.scalar(graph.dtype(self.x)?, f64::from(self.value))?;
        let x = graph.read(self.x)?;
        let value = pads.pad(graph, (x, self.x), 1, Some(element))?;
        graph.write(self.out, value);
        Ok(())
    }
}
impl ExportOp for Pad3dGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let pads = VolumePads::of(self.paddings_tensor, &self.paddings, self.data_format, self.mode)?;
        let dout = graph.read(self.dout)?;
        if self.mode == PadMode::Constant {
            let value = pads.pad(graph, (dout, self.dout), -1, None)?;
            graph.write(self.dx, value);
            return Ok(());
        }
        // The positions of the elements that padding repeats.
        let (dims, rank) = (graph.run_dims(self.x)?, graph.rank(self.x)?);
        let count = graph.merged_dims(self.x, 0, rank)?;
        let positions = graph.range(count)?;
        let positions = graph.reshape_to(positions, &dims)?;
        let positions = pads.pad(graph, (positions, self.x), 1, None)?;
        let (positions, dout) = (graph.reshape(positions, &[-1])?, graph.reshape(dout, &[-1])?);
        let zeros = graph.filled_to(graph.dtype(self.dout)?, 0.0, &[count])?;
        let reduction = [("reduction", NodeAttr::Text("add"))];
        let sums = graph.op("ScatterElements", &[zeros, positions, dout], &reduction);
        let value = graph.reshape_to(sums, &dims)?;
        graph.write(self.dx, value);
        Ok(())
    }
}
