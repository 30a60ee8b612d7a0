//! Broadcasting, repetition and their gradients.

use autobwd::{Error, ErrorKind, Result, program::Var};
use autobwd_ops::shape::{
    ExpandAsV2, ExpandAsV2Grad, ExpandV2, ExpandV2Grad, Meshgrid, MeshgridGrad, Tile, TileGrad,
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    fill::shape_from,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<ExpandAsV2>(),
        rule::<ExpandAsV2Grad>(),
        rule::<ExpandV2>(),
        rule::<ExpandV2Grad>(),
        rule::<Meshgrid>(),
        rule::<MeshgridGrad>(),
        rule::<Tile>(),
        rule::<TileGrad>(),
    ]
}

/// `out` = `x` in the shape of `out`; `dims` gives the shape where it is unknown.
fn expand(
    graph: &mut OnnxGraph<'_>,
    [x, out]: [Var; 2],
    dims: impl FnOnce(&mut OnnxGraph<'_>) -> Result<OnnxValue>,
) -> Result<()> {
    let dims = match graph.dims(out) {
        Ok(dims) => graph.ints(&dims)?,
        Err(_) => dims(graph)?,
    };
    let x = graph.read(x)?;
    let value = graph.op("Expand", &[x, dims], &[]);
    graph.write(out, value);
    Ok(())
}

/// `dx` = `dout`, summed over broadcast dimensions.
fn expand_grad(graph: &mut OnnxGraph<'_>, [x, dout, dx]: [Var; 3]) -> Result<()> {
    let (from, to) = (graph.shape(dout)?, graph.run_dims(x)?);
    let value = graph.read(dout)?;
    let value = graph.sum_to_dims(value, &from, &to, |_| true)?;
    graph.write(dx, value);
    Ok(())
}

impl ExportOp for ExpandV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand(graph, [self.x, self.out], |graph| {
            match shape_from(graph, self.shape_input, &self.expand_shapes_tensor)? {
                // −1 keeps a dimension, which 1 does in ONNX.
                Some(shape) => Ok(graph.op("Abs", &[shape], &[])),
                None => graph.ints(&self.shape.iter().map(|dim| i64::from(*dim).abs()).collect::<Vec<_>>()),
            }
        })
    }
}
impl ExportOp for ExpandV2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand_grad(graph, [self.x, self.dout, self.dx])
    }
}
impl ExportOp for ExpandAsV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand(graph, [self.x, self.out], |graph| {
            let mut dims = match self.y {
                Some(y) => graph.run_dims(y)?,
                None => return Err(graph.unknown_shape(self.out)),
            };
            let given = self.target_shape.iter().zip(&mut dims).filter(|(target, _)| **target >= 0);
            given.for_each(|(target, dim)| *dim = OnnxDim::Known(i64::from(*target)));
            graph.shape_list(&dims)
        })
    }
}
impl ExportOp for ExpandAsV2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        expand_grad(graph, [self.x, self.dout, self.dx])
    }
}

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
impl ExportOp for TileGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        if self.repeat_times_input.is_some() || !self.repeat_times_tensor.is_empty() {
            let text = "the gradient of `tile` with numbers from tensors has no form in ONNX";
            return Err(Error::new(ErrorKind::Format, text));
        }
        let dims = graph.run_dims(self.x)?;
        let rank = dims.len().max(self.repeat_times.len());
        // Each repetition as a dimension of its own.
        let mut apart = vec![];
        for i in 0..rank {
            let times = (i + self.repeat_times.len()).checked_sub(rank).map_or(1, |i| self.repeat_times[i]);
            let own = (i + dims.len()).checked_sub(rank).map_or(OnnxDim::Known(1), |i| dims[i]);
            apart.extend([OnnxDim::Known(i64::from(times)), own]);
        }
        let value = graph.read(self.dout)?;
        let value = graph.reshape_to(value, &apart)?;
        let repetitions: Vec<i64> = (0..rank as i64).map(|i| 2 * i).collect();
        let value = graph.reduce("ReduceSum", value, &repetitions, false)?;
        let value = graph.reshape_to(value, &dims)?;
        graph.write(self.dx, value);
        Ok(())
    }
}

impl ExportOp for Meshgrid {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let mut dims = vec![];
        for x in &self.x {
            dims.push(graph.merged_dims(*x, 0, graph.rank(*x)?)?);
        }
        for (i, (x, out)) in self.x.iter().zip(&self.out).enumerate() {
            let mut own = vec![1; dims.len()];
            own[i] = -1;
            let value = graph.read(*x)?;
            let value = graph.reshape(value, &own)?;
            let value = graph.expand_to(value, &dims)?;
            graph.write(*out, value);
        }
        Ok(())
    }
}
impl ExportOp for MeshgridGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let rank = self.x.len() as i64;
        for (i, ((dx, dout), x)) in self.dx.iter().zip(&self.dout).zip(&self.x).enumerate() {
            let Some(dx) = dx else { continue };
            let dims = graph.run_dims(*x)?;
            let others: Vec<i64> = (0..rank).filter(|axis| *axis != i as i64).collect();
            let value = graph.read(*dout)?;
            let value = graph.reduce("ReduceSum", value, &others, false)?;
            let value = graph.reshape_to(value, &dims)?;
            graph.write(*dx, value);
        }
        Ok(())
    }
}
