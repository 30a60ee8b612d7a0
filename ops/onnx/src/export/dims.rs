//! Shapes when the model runs: constants where dimensions are known, nodes that compute them where they are not.
//!
//! Variables that hold no elements but stand for a shape, such as `XShape`, map to the value that has the shape. An
//! unknown dimension over which a gradient may be a sum is compared with 1 when the model runs.

use autobwd::{Result, program::Var};

use super::onnx_graph::{NodeAttr, OnnxGraph, OnnxValue};

/// A dimension when the model runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum OnnxDim {
    Known(i64),
    /// The product of the dimensions of a value from one axis up to another one.
    Of(OnnxValue, usize, usize),
    /// In a shape to reshape to: what follows from the other dimensions.
    Rest,
}

impl OnnxDim {
    /// All dimensions of a value that has this shape, −1 where unknown.
    pub(super) fn all(value: OnnxValue, shape: &[i64]) -> Vec<OnnxDim> {
        let dim = |(axis, dim): (usize, &i64)| match dim {
            -1 => OnnxDim::Of(value, axis, axis + 1),
            dim => OnnxDim::Known(*dim),
        };
        shape.iter().enumerate().map(dim).collect()
    }

    fn is_known(&self) -> bool {
        matches!(self, OnnxDim::Known(_))
    }
}

impl OnnxGraph<'_> {
    /// The dimensions of a variable that has a value.
    pub(super) fn run_dims(&self, var: Var) -> Result<Vec<OnnxDim>> {
        let shape = self.shape(var)?;
        Ok(match shape.contains(&-1) {
            true => OnnxDim::all(self.read(var)?, &shape),
            false => shape.into_iter().map(OnnxDim::Known).collect(),
        })
    }

    /// A shape as a list of int64.
    pub(super) fn shape_list(&mut self, dims: &[OnnxDim]) -> Result<OnnxValue> {
        let mut parts: Vec<OnnxValue> = vec![];
        let mut rest = dims;
        while let Some(first) = rest.first() {
            let mut count = 1;
            let part = match *first {
                OnnxDim::Of(value, start, end) if end == start + 1 => {
                    let next = |n: usize| rest.get(n) == Some(&OnnxDim::Of(value, start + n, start + n + 1));
                    while next(count) {
                        count += 1;
                    }
                    self.shape_part(value, start, start + count)
                }
                OnnxDim::Of(value, start, end) => {
                    let dims = self.shape_part(value, start, end);
                    self.reduce("ReduceProd", dims, &[0], true)?
                }
                _ => {
                    let number = |dim: &OnnxDim| match dim {
                        OnnxDim::Known(dim) => Some(*dim),
                        OnnxDim::Rest => Some(-1),
                        OnnxDim::Of(..) => None,
                    };
                    let numbers: Vec<i64> = rest.iter().map_while(number).collect();
                    count = numbers.len();
                    self.ints(&numbers)?
                }
            };
            parts.push(part);
            rest = &rest[count..];
        }
        Ok(match parts[..] {
            [] => self.ints(&[])?,
            [part] => part,
            _ => self.op("Concat", &parts, &[("axis", NodeAttr::Int(0))]),
        })
    }

    fn shape_part(&mut self, value: OnnxValue, start: usize, end: usize) -> OnnxValue {
        let attrs = [("start", NodeAttr::Int(start as i64)), ("end", NodeAttr::Int(end as i64))];
        self.op("Shape", &[value], &attrs)
    }

    /// A value in another shape.
    pub(super) fn reshape_to(&mut self, x: OnnxValue, dims: &[OnnxDim]) -> Result<OnnxValue> {
        let open = dims.iter().filter(|dim| !dim.is_known()).count();
        // One dimension follows from the others, unless these have no elements.
        let follows = open == 1 && !dims.contains(&OnnxDim::Known(0));
        let dims: Vec<OnnxDim> = match follows {
            true => dims.iter().map(|dim| if dim.is_known() { *dim } else { OnnxDim::Rest }).collect(),
            false => dims.to_vec(),
        };
        let dims = self.shape_list(&dims)?;
        Ok(self.op("Reshape", &[x, dims], &[("allowzero", NodeAttr::Int(1))]))
    }

    /// A value, broadcast to a shape.
    pub(super) fn expand_to(&mut self, x: OnnxValue, dims: &[OnnxDim]) -> Result<OnnxValue> {
        let dims = self.shape_list(dims)?;
        Ok(self.op("Expand", &[x, dims], &[]))
    }

    /// A value without dimensions of 1.
    pub(super) fn squeeze(&mut self, x: OnnxValue, axes: &[i64]) -> Result<OnnxValue> {
        let axes = self.ints(axes)?;
        Ok(self.op("Squeeze", &[x, axes], &[]))
    }

    /// A value whose broadcast dimensions are summed, so that it has the dimensions `to`. An unknown dimension for which
    /// `may_be_one` holds is compared with 1 when the model runs.
    pub(super) fn sum_to_dims(
        &mut self,
        x: OnnxValue,
        from: &[i64],
        to: &[OnnxDim],
        may_be_one: impl Fn(usize) -> bool,
    ) -> Result<OnnxValue> {
        let more = from.len().saturating_sub(to.len());
        let aligned = |i: usize| i.checked_sub(more).map_or(OnnxDim::Known(1), |i| to[i]);
        let summed = |i: &usize| *i < more || (aligned(*i) == OnnxDim::Known(1) && from[*i] != 1);
        let axes: Vec<i64> = (0..from.len()).filter(summed).map(|i| i as i64).collect();
        let open: Vec<usize> =
            (more..from.len()).filter(|i| !aligned(*i).is_known() && may_be_one(*i - more)).collect();
        let mut sum = x;
        if open.is_empty() {
            sum = self.reduce("ReduceSum", sum, &axes, true)?;
        } else {
            let dims = self.shape_list(&open.iter().map(|i| aligned(*i)).collect::<Vec<_>>())?;
            let one = self.ints(&[1])?;
            let is_one = self.op("Equal", &[dims, one], &[]);
            let candidates = self.ints(&open.iter().map(|i| *i as i64).collect::<Vec<_>>())?;
            let mut chosen = self.op("Compress", &[candidates, is_one], &[("axis", NodeAttr::Int(0))]);
            if !axes.is_empty() {
                let axes = self.ints(&axes)?;
                chosen = self.op("Concat", &[axes, chosen], &[("axis", NodeAttr::Int(0))]);
            }
            let attrs = [("keepdims", NodeAttr::Int(1)), ("noop_with_empty_axes", NodeAttr::Int(1))];
            sum = self.op("ReduceSum", &[sum, chosen], &attrs);
        }
        if more > 0 {
            sum = self.squeeze(sum, &(0..more as i64).collect::<Vec<_>>())?;
        }
        Ok(sum)
    }
}
