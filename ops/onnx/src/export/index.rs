//! Look-up by index.

use autobwd::{DType, Result, program::Var};
use autobwd_ops::{
    embedding::{LookupTable, LookupTableGrad, LookupTableV2, LookupTableV2Grad},
    gather::{Gather, GatherGrad},
    index::{IndexSelect, IndexSelectGrad},
    scatter::{GatherNd, TakeAlongAxis, TakeAlongAxisGrad},
};

use super::{
    ExportOp, ExportRule,
    dims::OnnxDim,
    onnx_graph::{NodeAttr, OnnxGraph, OnnxValue},
    rule,
};

pub(super) fn rules() -> Vec<(&'static str, ExportRule)> {
    vec![
        rule::<Gather>(),
        rule::<GatherGrad>(),
        rule::<GatherNd>(),
        rule::<IndexSelect>(),
        rule::<IndexSelectGrad>(),
        rule::<LookupTable>(),
        rule::<LookupTableGrad>(),
        rule::<LookupTableV2>(),
        rule::<LookupTableV2Grad>(),
        rule::<TakeAlongAxis>(),
        rule::<TakeAlongAxisGrad>(),
    ]
}

/// Rows of a table; that of padding does not count.
struct TableRows {
    ids: Var,
    padding: i64,
    /// Whether the ids have a further dimension, of 1, as those of `lookup_table`.
    column: bool,
}

impl TableRows {
    /// The ids with a further dimension, of 1; 0 in place of padding, which the table need not have; and where that is.
    fn column(&self, graph: &mut OnnxGraph<'_>) -> Result<(OnnxValue, Option<OnnxValue>)> {
        let mut ids = graph.read(self.ids)?;
        if !self.column {
            let last = graph.ints(&[-1])?;
            ids = graph.op("Unsqueeze", &[ids, last], &[]);
        }
        if self.padding < 0 {
            return Ok((ids, None));
        }
        let dtype = graph.dtype(self.ids)?;
        let (padding, zero) = (graph.scalar(dtype, self.padding as f64)?, graph.scalar(dtype, 0.0)?);
        let is_padding = graph.op("Equal", &[ids, padding], &[]);
        Ok((graph.op("Where", &[is_padding, zero, ids], &[]), Some(is_padding)))
    }

    /// The values of rows, 0 where they do not count.
    fn counting(
        graph: &mut OnnxGraph<'_>,
        values: OnnxValue,
        like: Var,
        padding: Option<OnnxValue>,
    ) -> Result<OnnxValue> {
        let Some(padding) = padding else { return Ok(values) };
        let zero = graph.scalar(graph.dtype(like)?, 0.0)?;
        Ok(graph.op("Where", &[padding, zero, values], &[]))
    }

    fn look_up(&self, graph: &mut OnnxGraph<'_>, [w, out]: [Var; 2]) -> Result<()> {
        let (ids, padding) = self.column(graph)?;
        let (table, last) = (graph.read(w)?, graph.ints(&[-1])?);
        let ids = graph.op("Squeeze", &[ids, last], &[]);
        let rows = graph.op("Gather", &[table, ids], &[]);
        let rows = TableRows::counting(graph, rows, w, padding)?;
        graph.write(out, rows);
        Ok(())
    }

    /// `dw` = the sum of the rows of `dout` with each index.
    fn add_up(&self, graph: &mut OnnxGraph<'_>, [w, dout, dw]: [Var; 3]) -> Result<()> {
        let (ids, padding) = self.column(graph)?;
        let rows = graph.read(dout)?;
        let rows = TableRows::counting(graph, rows, dout, padding)?;
        let dims = graph.run_dims(w)?;
        let sums = scatter(graph, dw, &dims, ids, rows)?;
        graph.write(dw, sums);
        Ok(())
    }
}

/// Zeros of a variable's dtype, to which `rows` are added at these indices, `[.., 1]`.
fn scatter(
    graph: &mut OnnxGraph<'_>,
    like: Var,
    dims: &[OnnxDim],
    ids: OnnxValue,
    rows: OnnxValue,
) -> Result<OnnxValue> {
    let ids = graph.cast(ids, DType::I64);
    let zeros = graph.filled_to(graph.dtype(like)?, 0.0, dims)?;
    Ok(graph.op("ScatterND", &[zeros, ids, rows], &[("reduction", NodeAttr::Text("add"))]))
}

impl ExportOp for LookupTable {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        TableRows { ids: self.ids, padding: self.padding_idx, column: true }
            .look_up(graph, [self.w, self.out])
    }
}
impl ExportOp for LookupTableGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        TableRows { ids: self.ids, padding: self.padding_idx, column: true }
            .add_up(graph, [self.w, self.dout, self.dw])
    }
}
impl ExportOp for LookupTableV2 {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        TableRows { ids: self.ids, padding: self.padding_idx, column: false }
            .look_up(graph, [self.w, self.out])
    }
}
impl ExportOp for LookupTableV2Grad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        TableRows { ids: self.ids, padding: self.padding_idx, column: false }
            .add_up(graph, [self.w, self.dout, self.dw])
    }
}

impl ExportOp for Gather {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, index) = (graph.read(self.x)?, graph.read(self.index)?);
        // A column of indices is a list, here.
        let index = if graph.rank(self.index)? > 1 { graph.reshape(index, &[-1])? } else { index };
        let rows = graph.op("Gather", &[x, index], &[("axis", NodeAttr::Int(i64::from(self.axis)))]);
        graph.write(self.out, rows);
        Ok(())
    }
}
impl ExportOp for GatherGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        RowsGrad { x: self.x, index: self.index, dout: self.dout, dx: self.dx }.export(graph, self.axis)
    }
}
impl ExportOp for IndexSelectGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        RowsGrad { x: self.x, index: self.index, dout: self.dout, dx: self.dx }.export(graph, self.dim)
    }
}

/// The gradient of slices with indices along an axis.
struct RowsGrad {
    x: Var,
    index: Var,
    dout: Var,
    dx: Var,
}

impl RowsGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>, axis: i32) -> Result<()> {
        let (rank, axis) = (graph.rank(self.dx)?, graph.axis(self.dx, axis)?);
        let mut dims = graph.run_dims(self.x)?;
        let (index, mut dout) = (graph.read(self.index)?, graph.read(self.dout)?);
        let index = graph.reshape(index, &[-1, 1])?;
        if graph.rank(self.index)? == 0 {
            dout = graph.unsqueeze(dout, &[axis as i64])?;
        }
        // The axis first, and back.
        let mut order: Vec<i64> = (0..rank as i64).collect();
        order.insert(0, order[axis]);
        order.remove(axis + 1);
        let back: Vec<i64> = (0..rank as i64)
            .map(|at| order.iter().position(|axis| *axis == at).unwrap_or(0) as i64)
            .collect();
        let dout = graph.permute(dout, &order);
        let len = dims.remove(axis);
        dims.insert(0, len);
        let sums = scatter(graph, self.dx, &dims, index, dout)?;
        let value = graph.permute(sums, &back);
        graph.write(self.dx, value);
        Ok(())
    }
}

impl ExportOp for IndexSelect {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, index) = (graph.read(self.x)?, graph.read(self.index)?);
        let rows = graph.op("Gather", &[x, index], &[("axis", NodeAttr::Int(i64::from(self.dim)))]);
        graph.write(self.out, rows);
        Ok(())
    }
}

impl ExportOp for GatherNd {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let (x, index) = (graph.read(self.x)?, graph.read(self.index)?);
        let index = graph.cast(index, DType::I64);
        let slices = graph.op("GatherND", &[x, index], &[]);
        graph.write(self.out, slices);
        Ok(())
    }
}

impl ExportOp for TakeAlongAxis {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = [("axis", NodeAttr::Int(graph.axis(self.input, self.axis)? as i64))];
        let (x, index) = (graph.read(self.input)?, graph.read(self.index)?);
        let taken = graph.op("GatherElements", &[x, index], &axis);
        graph.write(self.result, taken);
        Ok(())
    }
}
impl ExportOp for TakeAlongAxisGrad {
    fn export(&self, graph: &mut OnnxGraph<'_>) -> Result<()> {
        let axis = NodeAttr::Int(graph.axis(self.dinput, self.axis)? as i64);
        let (index, dresult) = (graph.read(self.index)?, graph.read(self.dresult)?);
        let dims = graph.run_dims(self.input)?;
        let zeros = graph.filled_to(graph.dtype(self.dinput)?, 0.0, &dims)?;
        let attrs = [("axis", axis), ("reduction", NodeAttr::Text("add"))];
        let sums = graph.op("ScatterElements", &[zeros, index, dresult], &attrs);
        graph.write(self.dinput, sums);
        Ok(())
    }
}
