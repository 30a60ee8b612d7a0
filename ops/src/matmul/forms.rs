//! Products of more than two factors, and of features: `multi_dot`, `bilinear_tensor_product` and `fsp`.

use autobwd::{
    Composed, Composition, Dims, Error, ErrorKind, Expr, Infer, Meta, Result, Var, check::*, register_op,
    tensor::Dim,
};

use super::product;
use crate::Math;

/// Product of a chain of matrices: `out = x₀ · x₁ · …`, in the order that needs the fewest multiplications, where all
/// dimensions are known.
#[register_op(grad = Composed, composed)]
pub struct MultiDot<V = Var> {
    /// At least two matrices, each with as many rows as the previous one has columns. The first may be a vector, a row,
    /// and the last one a vector, a column.
    #[input]
    pub x: Vec<V>,
    /// The rows of the first and the columns of the last matrix; vectors have none.
    #[output]
    pub out: V,
}
impl Infer for MultiDot<Meta> {
    fn infer(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.x.first(), self.x.last().filter(|_| self.x.len() > 1)) else {
            return Err(Error::new(ErrorKind::Slot, "`X`: at least two variables are needed"));
        };
        first.float()?;
        let mut columns = None;
        for (i, x) in self.x.iter().enumerate() {
            x.same_dtype(first)?;
            let may_be_vector = i == 0 || i + 1 == self.x.len();
            x.require(x.rank() == 2 || (x.rank() == 1 && may_be_vector), || {
                let vector = if may_be_vector { " or a vector" } else { "" };
                format!("a matrix{vector} is needed")
            })?;
            let rows = x.dims[0];
            if let Some(columns) = columns.replace(x.dims[x.rank() - 1]) {
                x.require(rows.agrees(columns), || format!("{columns} rows are needed"))?;
            }
        }
        let rows = first.dims.iter().take(first.rank() - 1);
        let dims = rows.chain(last.dims.iter().skip(1)).copied().collect::<Dims>();
        self.out.set(first.dtype, dims);
        Ok(())
    }

    fn flops(&self) -> Dim {
        self.x.iter().fold(Dim::from(0), |sum, x| sum + Dim::from(2) * x.dims.numel())
    }
}
impl Composition for MultiDot<Expr> {
    fn compose(&mut self) {
        let left = || self.x.iter().cloned().reduce(|whole, x| whole.matmul(&x));
        let product = match self.sizes() {
            Some(sizes) if self.x.len() <= LONGEST => Some(Chain::new(&sizes).multiply(&self.x, 0)),
            _ => left(),
        };
        if let Some(product) = product {
            self.out = product;
        }
    }
}
impl MultiDot<Expr> {
    /// The rows of each matrix, and the columns of the last one, if all are known.
    fn sizes(&self) -> Option<Vec<f64>> {
        let last = self.x.len().checked_sub(1)?;
        let mut sizes = vec![];
        for (i, x) in self.x.iter().enumerate() {
            let dims = x.dims();
            // A vector is a row in front, and a column at the end.
            let (rows, columns) = match (&*dims, i) {
                ([n], 0) => (Dim::from(1), *n),
                ([n], _) => (*n, Dim::from(1)),
                ([m, n], _) => (*m, *n),
                _ => return None,
            };
            sizes.push(rows.get()? as f64);
            if i == last {
                sizes.push(columns.get()? as f64);
            }
        }
        Some(sizes)
    }
}
autobwd::samples!(
    MultiDot,
    [
        MultiDot { x: vec![uniform([2, 3]), uniform([3, 4])], out: out() },
        MultiDot { x: vec![uniform([2, 5]), uniform([5, 3]), uniform([3, 4])], out: out() },
        MultiDot { x: vec![uniform([5, 2]), uniform([2, 4]), uniform([4, 3]), uniform([3, 1])], out: out() },
        MultiDot { x: vec![uniform([3]), uniform([3, 4]), uniform([4, 2])], out: out() },
        MultiDot { x: vec![uniform([2, 3]), uniform([3, 4]), uniform([4])], out: out() },
        MultiDot { x: vec![uniform([3]), uniform([3])], out: out() },
        MultiDot { x: vec![uniform([2, 0]), uniform([0, 3])], out: out() },
        MultiDot { x: vec![uniform([2, 3])], out: out() }.fails("`X`: at least two variables are needed"),
        MultiDot { x: vec![uniform([2, 3]), uniform([4, 3])], out: out() }
            .fails("`X`: 3 rows are needed, not"),
        MultiDot { x: vec![uniform([2, 3]), uniform([3]), uniform([3, 4])], out: out() }
            .fails("`X`: a matrix is needed, not"),
        MultiDot { x: vec![uniform([2, 3]), uniform([])], out: out() }
            .fails("`X`: a matrix or a vector is needed, not"),
        MultiDot { x: vec![integers_below(9, [2, 3]), integers_below(9, [3, 4])], out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);

/// The longest chain whose order is optimised; the time for it grows with the cube of the length.
const LONGEST: usize = 64;

/// The order of the products of a chain with the fewest multiplications, by dynamic programming (Godbole, 1973).
struct Chain {
    /// For each part of the chain, by its first and last matrix, the first matrix of its right factor.
    splits: Vec<Vec<usize>>,
}

impl Chain {
    /// For matrices with these rows, and columns of the last one.
    fn new(sizes: &[f64]) -> Chain {
        let n = sizes.len() - 1;
        let (mut costs, mut splits) = (vec![vec![0.0; n]; n], vec![vec![0; n]; n]);
        for length in 1..n {
            for first in 0..n - length {
                let last = first + length;
                let cost = |split: usize| {
                    let product = sizes[first] * sizes[split] * sizes[last + 1];
                    costs[first][split - 1] + costs[split][last] + product
                };
                let better = |best: usize, split| if cost(split) < cost(best) { split } else { best };
                let split = (first + 2..=last).fold(first + 1, better);
                (costs[first][last], splits[first][last]) = (cost(split), split);
            }
        }
        Chain { splits }
    }

    /// The product of a part that begins at this matrix of the chain.
    fn multiply(&self, part: &[Expr], first: usize) -> Expr {
        if part.len() == 1 {
            return part[0].clone();
        }
        let split = self.splits[first][first + part.len() - 1];
        let (left, right) = part.split_at(split - first);
        self.multiply(left, first).matmul(&self.multiply(right, split))
    }
}

/// Bilinear form of two vectors for each sample and output: `out[b, s] = x[b] · weight[s] · y[b]ᵀ + bias[s]`.
#[register_op(grad = Composed, composed)]
pub struct BilinearTensorProduct<V = Var> {
    /// A row for each sample, `[batch, m]`.
    #[input]
    pub x: V,
    /// A row for each sample, `[batch, n]`.
    #[input]
    pub y: V,
    /// A matrix for each output, `[outputs, m, n]`.
    #[input]
    pub weight: V,
    /// A number for each output, `[1, outputs]`.
    #[input]
    pub bias: Option<V>,
    /// `[batch, outputs]`.
    #[output]
    pub out: V,
}
impl Infer for BilinearTensorProduct<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        self.weight.same_dtype(&self.x)?;
        let ([batch, m], [rows, n]) = (self.x.unpack()?, self.y.unpack()?);
        let [outputs, left, right] = self.weight.unpack()?;
        self.y.require(rows.agrees(batch), || format!("a batch of {batch} is needed"))?;
        self.weight
            .require(left.agrees(m) && right.agrees(n), || format!("matrices of [{m}, {n}] are needed"))?;
        let mut outputs = outputs;
        if let Some(bias) = &self.bias {
            bias.same_dtype(&self.x)?;
            let [one, count] = bias.unpack()?;
            bias.require(one.agrees(1.into()) && count.agrees(outputs), || {
                format!("[1, {outputs}] is needed")
            })?;
            outputs = outputs.or(count);
        }
        self.out.set(self.x.dtype, [batch.or(rows), outputs].into_iter().collect::<Dims>());
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.out.dims.numel() * self.weight.dims[1] * self.weight.dims[2]
    }
}
impl Composition for BilinearTensorProduct<Expr> {
    fn compose(&mut self) {
        let forms = (self.x.matmul(&self.weight) * &self.y).sum(&[-1]).transpose(&[1, 0]);
        self.out = match &self.bias {
            Some(bias) => forms + bias,
            None => forms,
        };
    }
}
autobwd::samples!(
    BilinearTensorProduct,
    [
        bilinear(uniform([5, 2]), uniform([5, 3]), uniform([4, 2, 3]), Some(uniform([1, 4]))),
        bilinear(uniform([5, 2]), uniform([5, 3]), uniform([4, 2, 3]), None),
        bilinear(uniform([0, 2]), uniform([0, 3]), uniform([4, 2, 3]), None),
        bilinear(uniform([5, 2]), uniform([4, 3]), uniform([4, 2, 3]), None)
            .fails("`Y`: a batch of 5 is needed"),
        bilinear(uniform([5, 2]), uniform([5, 3]), uniform([4, 3, 3]), None)
            .fails("`Weight`: matrices of [2, 3] are needed"),
        bilinear(uniform([5, 2]), uniform([5, 3]), uniform([4, 2, 3]), Some(uniform([4, 1])))
            .fails("`Bias`: [1, 4] is needed"),
        bilinear(uniform([5, 2]), uniform([5, 3]), uniform([4, 2]), None)
            .fails("`Weight`: 3 dimensions are needed"),
        bilinear(uniform([5]), uniform([5, 3]), uniform([4, 2, 3]), None)
            .fails("`X`: 2 dimensions are needed"),
        bilinear(uniform([5, 2]), uniform([3]), uniform([4, 2, 3]), None)
            .fails("`Y`: 2 dimensions are needed"),
        bilinear(integers_below(9, [5, 2]), uniform([5, 3]), uniform([4, 2, 3]), None)
            .fails("`X`: floating point numbers are needed"),
    ]
);

fn bilinear(x: Draw, y: Draw, weight: Draw, bias: Option<Draw>) -> BilinearTensorProduct<Draw> {
    BilinearTensorProduct { x, y, weight, bias, out: out() }
}

/// Flow of a solution procedure (Yim et al., 2017), the mean product of the channels of two images:
/// `out[b, i, j] = Σ x[b, i, h, w] * y[b, j, h, w] / (height * width)`.
#[register_op(grad = Composed, composed)]
pub struct Fsp<V = Var> {
    /// Images, `[batch, m, height, width]`.
    #[input]
    pub x: V,
    /// Images of the same size, `[batch, n, height, width]`.
    #[input]
    pub y: V,
    /// `[batch, m, n]`.
    #[output]
    pub out: V,
}
impl Infer for Fsp<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.y.same_dtype(&self.x)?;
        let ([batch, m, height, width], [others, n, rows, columns]) = (self.x.unpack()?, self.y.unpack()?);
        let fits = batch.agrees(others) && height.agrees(rows) && width.agrees(columns);
        self.y.require(fits, || format!("dimensions [{batch}, {n}, {height}, {width}] are needed"))?;
        self.out.set(self.x.dtype, [batch.or(others), m, n].into_iter().collect::<Dims>());
        Ok(())
    }

    fn flops(&self) -> Dim {
        Dim::from(2) * self.x.dims.numel() * self.y.dims[1]
    }
}
impl Composition for Fsp<Expr> {
    fn compose(&mut self) {
        let size = self.x.dim(2) * self.x.dim(3);
        let [x, y] = [&self.x, &self.y].map(|x| x.flatten(2, 3));
        self.out = &product([&x, &y], [false, true]) / &size;
    }
}
autobwd::samples!(
    Fsp,
    [
        Fsp { x: uniform([2, 3, 5, 4]), y: uniform([2, 1, 5, 4]), out: out() },
        Fsp { x: uniform([2, 3, 0, 4]), y: uniform([2, 1, 0, 4]), out: out() },
        Fsp { x: uniform([2, 3, 5, 4]), y: uniform([2, 1, 4, 4]), out: out() }
            .fails("`Y`: dimensions [2, 1, 5, 4] are needed"),
        Fsp { x: uniform([2, 3, 5]), y: uniform([2, 1, 5, 4]), out: out() }
            .fails("`X`: 4 dimensions are needed"),
        Fsp { x: uniform([2, 3, 5, 4]), y: uniform([2]), out: out() }.fails("`Y`: 4 dimensions are needed"),
        Fsp { x: integers_below(9, [2, 3, 5, 4]), y: uniform([2, 1, 5, 4]), out: out() }
            .fails("`X`: floating point numbers are needed"),
    ]
);
