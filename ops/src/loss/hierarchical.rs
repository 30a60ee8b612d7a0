//! Hierarchical sigmoid: classes as leaves of a binary tree.

use autobwd::{
    Composed, Composition, DType, Dims, Expr, Infer, Meta, Result, Var, check::*, register_op, tensor::Dim,
};

use crate::{
    DimExpr, Math, concat,
    gather::are_numbers,
    math::{in_dtype, like},
};

/// Hierarchical sigmoid (Morin and Bengio, 2005): `out = Σ ln(1 + exp(z[j])) - Σ b[j] * z[j]`, with `z[j]` the score of node `j` on the
/// path to the label, `x · w[node] + bias[node]` within −40 and 40, and `b[j]` the branch there, 0 or 1.
///
/// Without `path_table`, the tree is complete: class `c` is leaf `l = c + num_classes` of a heap, and node `⌊l / 2^(j+1)⌋ - 1` of the path has
/// branch `⌊l / 2^j⌋ mod 2`. As in the reference, nodes that a path lacks count with `z[j] = 0`, so each adds `ln 2`.
#[register_op(grad = Composed, composed)]
pub struct HierarchicalSigmoid<V = Var> {
    /// `[n, d]`
    #[input]
    pub x: V,
    /// A row for each node, `[num_classes - 1, d]`; any number of rows with `path_table`.
    #[input]
    pub w: V,
    /// Classes, int64 or int32, `[n, 1]`.
    #[input]
    pub label: V,
    /// The nodes of each path, negative ones for none: int64 or int32, `[n, length]`.
    #[input]
    pub path_table: Option<V>,
    /// The branches of each path, same shape as `path_table`.
    #[input]
    pub path_code: Option<V>,
    /// A number for each node, `[num_classes - 1, 1]`.
    #[input]
    pub bias: Option<V>,
    /// `[n, 1]`
    #[output]
    pub out: V,
    /// `ln(1 + exp(z[j]))`, `[n, length]`.
    #[output]
    pub pre_out: V,
    /// The number of classes, which sets the complete tree.
    #[attr(default = 2, min = 2)]
    pub num_classes: i32,
}
impl Infer for HierarchicalSigmoid<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        let [n, d] = self.x.dims[..] else { return Err(self.x.wrong("a matrix is needed")) };
        are_numbers(&self.label)?;
        let column = Dims::from_iter([n, 1.into()]);
        self.label.require(self.label.dims.agrees(&column), || format!("dimensions {column} are needed"))?;
        let length = match (&self.path_table, &self.path_code) {
            (None, None) => levels(self.num_classes).into(),
            (Some(table), Some(code)) => {
                are_numbers(table)?;
                are_numbers(code)?;
                let fits = table.rank() == 2 && table.dims[0].agrees(n);
                table.require(fits, || format!("dimensions [{n}, -1] are needed"))?;
                code.require(code.dims.agrees(&table.dims), || {
                    format!("the shape of `PathTable`, {}, is needed", table.dims)
                })?;
                table.dims[1].or(code.dims[1])
            }
            (Some(other), None) | (None, Some(other)) => {
                return Err(other.wrong("`PathTable` and `PathCode` are needed together"));
            }
        };
        let nodes =
            if self.path_table.is_some() { Dim::UNKNOWN } else { (self.num_classes as usize - 1).into() };
        for (x, dims) in [(Some(&self.w), [nodes, d]), (self.bias.as_ref(), [nodes, 1.into()])] {
            let (Some(x), dims) = (x, Dims::from_iter(dims)) else { continue };
            x.same_dtype(&self.x)?;
            x.require(x.dims.agrees(&dims), || format!("dimensions {dims} are needed"))?;
        }
        self.out.set(self.x.dtype, column);
        self.pre_out.set(self.x.dtype, Dims::from_iter([n, length]));
        Ok(())
    }
}
impl Composition for HierarchicalSigmoid<Expr> {
    fn compose(&mut self) {
        let (nodes, branches) = match (&self.path_table, &self.path_code) {
            (Some(table), Some(code)) => (in_dtype(table, DType::I64), in_dtype(code, DType::I64)),
            _ => complete_tree(&in_dtype(&self.label, DType::I64), self.num_classes),
        };
        let (n, length) = (self.x.dim(0), nodes.dim(1));
        let zeros = like(&nodes, 0.0);
        let is_there = nodes.greater_equal(&zeros);
        let read = is_there.where_cond(&nodes, &zeros).flatten(0, 1);
        let of_nodes =
            |x: &Expr, width: DimExpr| x.gather(&read, 0).reshape_to(&[n.clone(), length.clone(), width]);
        let mut z = (of_nodes(&self.w, self.x.dim(1)) * self.x.unsqueeze(&[1])).sum(&[2]);
        if let Some(bias) = &self.bias {
            z = z + of_nodes(bias, 1.into()).squeeze(&[2]);
        }
        let z = is_there.where_cond(&z.clip(-40.0, 40.0), &like(&z, 0.0));
        self.pre_out = z.exp().log1p();
        let taken = in_dtype(&is_there.where_cond(&branches, &zeros), self.x.dtype()) * z;
        self.out = (&self.pre_out - taken).sum(&[1]).unsqueeze(&[1]);
    }
}
autobwd::samples!(
    HierarchicalSigmoid,
    [
        hierarchical(given([3, 1], [0.0, 3.0, 5.0]).of(DType::I64), 6, Some(uniform([5, 1]))),
        hierarchical(given([3, 1], [1.0, 0.0, 1.0]).of(DType::I32), 2, None),
        hierarchical(given([3, 1], [7.0, 2.0, 4.0]).of(DType::I64), 8, None),
        HierarchicalSigmoid {
            x: uniform([0, 4]),
            ..hierarchical(integers_below(4, [0, 1]), 4, Some(uniform([3, 1])))
        },
        HierarchicalSigmoid {
            w: uniform([5, 4]),
            path_table: Some(given([3, 2], [0.0, 2.0, 0.0, -1.0, 1.0, 3.0]).of(DType::I64)),
            path_code: Some(given([3, 2], [0.0, 1.0, 1.0, -1.0, 0.0, 1.0]).of(DType::I64)),
            ..hierarchical(given([3, 1], [0.0, 3.0, 5.0]).of(DType::I64), 6, Some(uniform([5, 1])))
        },
        HierarchicalSigmoid {
            x: given([1, 1], [2.0]),
            w: given([1, 1], [25.0]),
            ..hierarchical(given([1, 1], [0.0]).of(DType::I64), 2, None)
        },
        hierarchical(given([3, 1], [0.0, 3.0, 7.0]).of(DType::I64), 6, None)
            .fails("`Index`: 5 is not within 0..5"),
        hierarchical(given([3, 1], [0.0, 1.0, 1.0]).of(DType::I64), 1, None).fails("attribute `num_classes`"),
        hierarchical(integers_below(2, [3]), 6, None).fails("`Label`: dimensions [3, 1] are needed"),
        HierarchicalSigmoid { label: uniform([3, 1]), ..hierarchical(integers_below(2, [3, 1]), 6, None) }
            .fails("`Label`: int64 or int32 is needed"),
        HierarchicalSigmoid { w: uniform([6, 4]), ..hierarchical(integers_below(2, [3, 1]), 6, None) }
            .fails("`W`: dimensions [5, 4] are needed"),
        HierarchicalSigmoid { x: uniform([3]), ..hierarchical(integers_below(2, [3, 1]), 6, None) }
            .fails("`X`: a matrix is needed"),
        HierarchicalSigmoid {
            x: integers_below(2, [3, 4]),
            ..hierarchical(integers_below(2, [3, 1]), 6, None)
        }
        .fails("`X`: floating point numbers are needed"),
        hierarchical(integers_below(2, [3, 1]), 6, Some(uniform([5])))
            .fails("`Bias`: dimensions [5, 1] are needed"),
        hierarchical(integers_below(2, [3, 1]), 6, Some(integers_below(2, [5, 1])))
            .fails("`Bias`: dtype int64 does not match"),
        HierarchicalSigmoid {
            path_table: Some(integers_below(5, [3, 2])),
            ..hierarchical(integers_below(2, [3, 1]), 6, None)
        }
        .fails("`PathTable`: `PathTable` and `PathCode` are needed together"),
        HierarchicalSigmoid {
            path_table: Some(integers_below(5, [3, 2])),
            path_code: Some(integers_below(2, [3, 1])),
            ..hierarchical(integers_below(2, [3, 1]), 6, None)
        }
        .fails("`PathCode`: the shape of `PathTable`, [3, 2], is needed"),
        HierarchicalSigmoid {
            path_table: Some(integers_below(5, [2, 2])),
            path_code: Some(integers_below(2, [2, 2])),
            ..hierarchical(integers_below(2, [3, 1]), 6, None)
        }
        .fails("`PathTable`: dimensions [3, -1] are needed"),
    ]
);

fn hierarchical(label: Draw, num_classes: i32, bias: Option<Draw>) -> HierarchicalSigmoid<Draw> {
    HierarchicalSigmoid {
        x: uniform([3, 4]),
        w: uniform([num_classes.max(2) as usize - 1, 4]),
        label,
        path_table: None,
        path_code: None,
        bias,
        out: out(),
        pre_out: out(),
        num_classes,
    }
}

/// The most nodes of a path in a complete tree.
fn levels(num_classes: i32) -> usize {
    (i32::BITS - (num_classes - 1).leading_zeros()) as usize
}

/// Nodes and branches of the paths to classes, each from its leaf.
fn complete_tree(label: &Expr, num_classes: i32) -> (Expr, Expr) {
    let leaf = label + f64::from(num_classes);
    let shifted = |level: usize| leaf.floor_divide(&like(&leaf, (1_u64 << level) as f64));
    let count = levels(num_classes);
    let nodes: Vec<Expr> = (0..count).map(|level| shifted(level + 1) - 1.0).collect();
    let branches: Vec<Expr> = (0..count).map(|level| shifted(level).remainder(&like(&leaf, 2.0))).collect();
    let joined = |columns: &[Expr]| concat(&columns.iter().collect::<Vec<_>>(), 1);
    (joined(&nodes), joined(&branches))
}
