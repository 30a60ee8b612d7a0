//! Broadcasting and repetition.

use autobwd::Result;
use autobwd_ops::shape::{ExpandV2, Tile};

use super::{
    ExportOp, ExportRule,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![rule::<ExpandV2>(), rule::<Tile>()]
}

impl ExportOp for ExpandV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let given = shape_from(graph, self.shape_input, &self.expand_shapes_tensor)?;
        let shape = match (graph.dims(self.out), given) {
            (Ok(dims), _) => graph.ints(&dims)?,
            // −1 keeps a dimension, which 1 does in ONNX.
            (Err(_), Some(shape)) => graph.op("Abs", &[shape], &[]),
            (Err(_), None) => {
                graph.ints(&self.shape.iter().map(|dim| i64::from(*dim).abs()).collect::<Vec<_>>())?
            }
        };
        let x = graph.read(self.x)?;
        let value = graph.op("Expand", &[x, shape], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}

// A reshape, an expansion and a reshape back, otherwise.
impl ExportOp for Tile {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x_rank, rank) = (graph.rank(self.x)?, graph.rank(self.out)?);
        let mut value = graph.read(self.x)?;
        if x_rank < rank {
            value = graph.unsqueeze(value, &(0..(rank - x_rank) as i64).collect::<Vec<_>>())?;
        }
        let given = shape_from(graph, self.repeat_times_input, &self.repeat_times_tensor)?;
        let (mut times, count) = match (given, self.repeat_times_input) {
            (Some(times), Some(list)) => (times, graph.dim(list, 0)? as usize),
            (Some(times), None) => (times, self.repeat_times_tensor.len()),
            _ => {
                let times: Vec<i64> = self.repeat_times.iter().map(|times| i64::from(*times)).collect();
                (graph.ints(&times)?, times.len())
            }
        };
        if count < rank {
            let ones = graph.ints(&vec![1; rank - count])?;
            times = graph.op("Concat", &[ones, times], &[("axis", NodeAttr::Int(0))]);
        }
        let value = graph.op("Tile", &[value, times], &[]);
        graph.write(self.out, value);
        Ok(())
    }
}
