//! `sequence_mask`, `shard_index`, `tril_indices` and `triu_indices`: masks and numbers of elements, composed of other
//! operators.

use autobwd::{
    Composition, DType, Dims, Error, ErrorKind, Expr, Infer, Meta, New, NoGrad, Result, Var, ZeroGrad,
    check::*, emit, operators::constant_int, register_op, tensor::Dim,
};

use crate::{
    Math,
    gather::are_numbers,
    kernel_helpers::number_dtype,
    math::{DimExpr, filled, in_dtype, like, positions, stack},
    search::Searchsorted,
};

/// Whether each position is within a sequence: `y[.., j] = j < x[..]`.
#[register_op(grad = ZeroGrad, composed)]
pub struct SequenceMask<V = Var> {
    /// Lengths of sequences, int64 or int32, any shape.
    #[input]
    pub x: V,
    /// The number of positions, in place of attribute `maxlen`: int32 or int64, one element.
    #[input("MaxLenTensor", constant)]
    pub max_len_tensor: Option<V>,
    /// `x` with the positions as additional last dimension, of the dtype of the attribute.
    #[output]
    pub y: V,
    /// The number of positions; −1, the length of the longest sequence in the reference, is not possible.
    #[attr(default = -1)]
    pub maxlen: i32,
    /// Element type of the result.
    #[attr]
    pub out_dtype: DType,
}
impl Infer for SequenceMask<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_numbers(&self.x)?;
        let length = match constant_int(self.max_len_tensor.as_ref(), self.maxlen.into())? {
            Some(length) => Dim::from(usize::try_from(length).map_err(|_| {
                Error::attr("maxlen", format!("a number of positions is needed, {length} leaves it to data"))
            })?),
            None => Dim::UNKNOWN,
        };
        self.y.set(self.out_dtype, self.x.dims.iter().copied().chain([length]).collect::<Dims>());
        Ok(())
    }
}
impl Composition for SequenceMask<Expr> {
    fn compose(&mut self) {
        let length = match &self.max_len_tensor {
            Some(length) => DimExpr::only_element(length),
            None => i64::from(self.maxlen).into(),
        };
        let place = in_dtype(&positions(self.x.builder(), &length), self.x.dtype());
        self.y = in_dtype(&place.less_than(&self.x.unsqueeze(&[-1])), self.out_dtype);
    }
}
autobwd::samples!(
    SequenceMask,
    [
        sequence_mask(integers_below(6, [2, 3]), 5, DType::F32),
        sequence_mask(integers_below(6, [4]).of(DType::I32), 3, DType::I64),
        sequence_mask(integers_below(6, []), 4, DType::Bool),
        sequence_mask(integers_below(6, [0]), 4, DType::F64),
        sequence_mask(integers_below(6, [3]), 0, DType::F64),
        SequenceMask {
            max_len_tensor: Some(integers(&[4]).of(DType::I32)),
            ..sequence_mask(integers_below(6, [3]), -1, DType::I32)
        },
        sequence_mask(integers_below(6, [3]), -1, DType::F32)
            .fails("attribute `maxlen`: a number of positions is needed, -1 leaves it to data"),
        sequence_mask(uniform([3]), 2, DType::F32).fails("`X`: int64 or int32 is needed"),
    ]
);

fn sequence_mask(x: Draw, maxlen: i32, out_dtype: DType) -> SequenceMask<Draw> {
    SequenceMask { x, max_len_tensor: None, y: out(), maxlen, out_dtype }
}

/// Numbers within one of several shards of equal size, `n = ⌈index_num / nshards⌉`: `out = x mod n` where
/// `⌊x / n⌋ = shard_id`, else `ignore_value`.
///
/// Numbers outside of `0..index_num` give `ignore_value`; the reference refuses them.
#[register_op(grad = ZeroGrad, composed)]
pub struct ShardIndex<V = Var> {
    /// Numbers, int64 or int32, any shape.
    #[input]
    pub x: V,
    /// Same shape and dtype as `x`.
    #[output]
    pub out: V,
    /// How many numbers there are.
    #[attr(min = 1)]
    pub index_num: i32,
    /// How many shards there are.
    #[attr(min = 1)]
    pub nshards: i32,
    /// The shard, below `nshards`.
    #[attr(min = 0)]
    pub shard_id: i32,
    /// What stands for numbers of other shards.
    #[attr(default = -1)]
    pub ignore_value: i32,
}
impl Infer for ShardIndex<Meta> {
    fn infer(&mut self) -> Result<()> {
        are_numbers(&self.x)?;
        if self.shard_id >= self.nshards {
            let text =
                format!("a number below `nshards` = {} is needed, not {}", self.nshards, self.shard_id);
            return Err(Error::attr("shard_id", text));
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for ShardIndex<Expr> {
    fn compose(&mut self) {
        let (x, count) = (self.x.cast(DType::I64), i64::from(self.index_num));
        let size = (count as u64).div_ceil(self.nshards as u64) as i64;
        let first = size * i64::from(self.shard_id);
        let end = count.min(first + size);
        let number = |n: i64| like(&x, n as f64);
        let is_there = x.greater_equal(&number(first)).logical_and(&x.less_than(&number(end)));
        let within = is_there.where_cond(&(&x - first as f64), &number(self.ignore_value.into()));
        self.out = within.cast(self.x.dtype());
    }
}
autobwd::samples!(
    ShardIndex,
    [
        shard_index(integers_below(20, [6, 1]), 20, 2, 0, -1),
        shard_index(integers_below(20, [2, 5]).of(DType::I32), 20, 3, 2, -7),
        shard_index(given([4], [-1.0, 4.0, 5.0, 6.0]).of(DType::I64), 5, 2, 1, -1),
        shard_index(integers_below(9, []), 9, 4, 3, 0),
        shard_index(integers_below(9, [0, 1]), 9, 2, 1, -1),
        shard_index(integers_below(9, [2]), 9, 2, 2, -1)
            .fails("attribute `shard_id`: a number below `nshards` = 2 is needed, not 2"),
        shard_index(integers_below(9, [2]), 0, 2, 1, -1).fails("attribute `index_num`"),
        shard_index(integers_below(9, [2]), 9, 0, 0, -1).fails("attribute `nshards`"),
        shard_index(uniform([2]), 9, 2, 0, -1).fails("`X`: int64 or int32 is needed"),
    ]
);

fn shard_index(x: Draw, index_num: i32, nshards: i32, shard_id: i32, ignore_value: i32) -> ShardIndex<Draw> {
    ShardIndex { x, out: out(), index_num, nshards, shard_id, ignore_value }
}

/// Rows and columns of the elements on and below a diagonal of a matrix, row by row: `out[0][k]`, `out[1][k]`.
#[register_op(grad = NoGrad, composed)]
pub struct TrilIndices<V = Var> {
    /// `[2, n]` for `n` elements.
    #[output("out")]
    pub out: V,
    /// The number of rows.
    #[attr(default = 0, min = 0)]
    pub rows: i32,
    /// The number of columns.
    #[attr(default = 0, min = 0)]
    pub cols: i32,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// Dtype of the numbers, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}
impl<V> TrilIndices<V> {
    fn triangle(&self) -> Triangle {
        let [rows, columns, offset] = [self.rows, self.cols, self.offset].map(i64::from);
        Triangle { rows, columns, cut: offset + 1, is_upper: false }
    }
}
impl Infer for TrilIndices<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.triangle().infer(self.dtype, &mut self.out)
    }
}
impl Composition for TrilIndices<Expr> {
    fn compose(&mut self) {
        self.out = self.triangle().numbers(&self.out, self.dtype);
    }
}
autobwd::samples!(
    TrilIndices,
    [
        tril_indices([4, 3], 0, DType::I64),
        tril_indices([4, 3], -1, DType::I32),
        tril_indices([3, 5], 1, DType::I64),
        tril_indices([2, 3], 7, DType::I64),
        tril_indices([2, 3], -7, DType::I64),
        tril_indices([0, 3], 0, DType::I64),
        tril_indices([3, 0], 0, DType::I64),
        tril_indices([-1, 3], 0, DType::I64).fails("attribute `rows`"),
        tril_indices([3, 2], 0, DType::F32).fails("attribute `dtype`: int64 or int32 is needed"),
        tril_indices([i32::MAX, i32::MAX], i32::MAX, DType::I64)
            .fails("`out`: 4611686014132420609 elements are more than a dimension can have"),
    ]
);

fn tril_indices([rows, cols]: [i32; 2], offset: i32, dtype: DType) -> TrilIndices<Draw> {
    TrilIndices { out: out(), rows, cols, offset, dtype }
}

/// Rows and columns of the elements on and above a diagonal of a matrix, row by row: `out[0][k]`, `out[1][k]`.
#[register_op(grad = NoGrad, composed)]
pub struct TriuIndices<V = Var> {
    /// `[2, n]` for `n` elements.
    #[output("out")]
    pub out: V,
    /// The number of rows.
    #[attr(default = 0, min = 0)]
    pub row: i32,
    /// The number of columns.
    #[attr(default = 0, min = 0)]
    pub col: i32,
    /// How far the diagonal is to the right of the main diagonal.
    #[attr(default = 0)]
    pub offset: i32,
    /// Dtype of the numbers, int64 or int32.
    #[attr(default = DType::I64)]
    pub dtype: DType,
}
impl<V> TriuIndices<V> {
    fn triangle(&self) -> Triangle {
        let [rows, columns, cut] = [self.row, self.col, self.offset].map(i64::from);
        Triangle { rows, columns, cut, is_upper: true }
    }
}
impl Infer for TriuIndices<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.triangle().infer(self.dtype, &mut self.out)
    }
}
impl Composition for TriuIndices<Expr> {
    fn compose(&mut self) {
        self.out = self.triangle().numbers(&self.out, self.dtype);
    }
}
autobwd::samples!(
    TriuIndices,
    [
        triu_indices([4, 3], 0, DType::I64),
        triu_indices([4, 3], -1, DType::I32),
        triu_indices([3, 5], 1, DType::I64),
        triu_indices([2, 3], 7, DType::I64),
        triu_indices([2, 3], -7, DType::I64),
        triu_indices([0, 3], 0, DType::I64),
        triu_indices([3, 0], 0, DType::I64),
        triu_indices([3, -1], 0, DType::I64).fails("attribute `col`"),
        triu_indices([3, 2], 0, DType::F32).fails("attribute `dtype`: int64 or int32 is needed"),
        triu_indices([i32::MAX, i32::MAX], i32::MIN, DType::I64)
            .fails("`out`: 4611686014132420609 elements are more than a dimension can have"),
    ]
);

fn triu_indices([row, col]: [i32; 2], offset: i32, dtype: DType) -> TriuIndices<Draw> {
    TriuIndices { out: out(), row, col, offset, dtype }
}

/// The elements of a matrix before column `i + cut` of each row `i`, or from there on if `is_upper`.
struct Triangle {
    rows: i64,
    columns: i64,
    cut: i64,
    is_upper: bool,
}

impl Triangle {
    fn infer(&self, dtype: DType, out: &mut Meta) -> Result<()> {
        number_dtype(dtype)?;
        let count = i32::try_from(self.count()).map_err(|_| {
            let text =
                format!("`{}`: {} elements are more than a dimension can have", out.slot(), self.count());
            Error::new(ErrorKind::Shape, text)
        })?;
        let count = usize::try_from(count).unwrap_or(0);
        out.set(dtype, [Dim::from(2), Dim::from(count)].into_iter().collect::<Dims>());
        Ok(())
    }

    /// The number of elements.
    fn count(&self) -> i128 {
        let [rows, columns, cut] = [self.rows, self.columns, self.cut].map(i128::from);
        // The sum of all numbers up to `n`, none above `columns`.
        let sum = |n: i128| {
            let slope = n.clamp(0, columns);
            slope * (slope + 1) / 2 + (n - columns).max(0) * columns
        };
        let before = sum(cut + rows - 1) - sum(cut - 1);
        if self.is_upper { rows * columns - before } else { before }
    }

    /// Their rows and columns.
    fn numbers(&self, out: &Expr, dtype: DType) -> Expr {
        let (builder, count) = (out.builder(), i64::try_from(self.count()).unwrap_or(i64::MAX));
        let number = |n: i64| filled(builder, DType::I64, &n.to_string(), &[1.into()]);
        let rows = positions(builder, &self.rows.into());
        let cuts = (rows + self.cut as f64).maximum(&number(0)).minimum(&number(self.columns));
        let (first, lengths) = match self.is_upper {
            true => (cuts.clone(), number(self.columns) - &cuts),
            false => (like(&cuts, 0.0), cuts),
        };
        let ends = lengths.cumsum(0);
        // Before element `k`, that many rows have ended.
        let k = positions(builder, &count.into());
        let (sorted_sequence, values) = ((&ends).into(), (&k).into());
        let row = emit(Searchsorted { sorted_sequence, values, out: New, right: true, out_int32: false }).out;
        let column = &k + (first - ends + lengths).gather(&row, 0);
        in_dtype(&stack(&[&row, &column], 0), dtype)
    }
}
