//! Operators on channels and columns: `shuffle_channel`, `maxout`, `affine_channel`, `partial_concat` and `partial_sum`,
//! composed of other operators.

use autobwd::{
    Composed, Composition, DType, Dims, Error, ErrorKind, Expr, Infer, Meta, New, Result, Var, check::*,
    emit, op::attr_enum, register_op, tensor::Dim,
};

use crate::{
    Math, concat,
    elementwise::{ElementwiseAdd, ElementwiseMul},
    image::ChannelShuffle,
    math::{DimExpr, all_sizes},
    norm::DataLayout,
    top_k::TopKV2,
};

/// Mixes groups of channels: with `n` channels in a group, `out[i * group + g] = x[g * n + i]`.
#[register_op(grad = Composed, composed)]
pub struct ShuffleChannel<V = Var> {
    /// Images, `[n, channels, height, width]`; any dtype.
    #[input]
    pub x: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Number of groups; it divides the number of channels.
    #[attr(default = 1, min = 1)]
    pub group: i32,
}
impl Infer for ShuffleChannel<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [_, channels, _, _] = self.x.unpack()?;
        check_groups(&self.x, channels, self.group)?;
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for ShuffleChannel<Expr> {
    fn compose(&mut self) {
        let (groups, data_format) = (self.group, DataLayout::Nchw);
        self.out = emit(ChannelShuffle { x: (&self.x).into(), out: New, groups, data_format }).out;
    }
}
autobwd::samples!(
    ShuffleChannel,
    [
        ShuffleChannel { x: uniform([2, 6, 3, 4]), out: out(), group: 3 },
        ShuffleChannel { x: uniform([1, 6, 5, 4]), out: out(), group: 2 },
        ShuffleChannel { x: uniform([2, 5, 3, 4]), out: out(), group: 1 },
        ShuffleChannel { x: uniform([2, 6, 0, 4]), out: out(), group: 3 },
        ShuffleChannel { x: integers_below(9, [1, 6, 3, 2]), out: out(), group: 2 },
        ShuffleChannel { x: uniform([2, 6, 3, 4]), out: out(), group: 4 }
            .fails("`X`: a number of channels divisible by 4 is needed"),
        ShuffleChannel { x: uniform([2, 6, 3]), out: out(), group: 3 }.fails("`X`: 4 dimensions are needed"),
        ShuffleChannel { x: uniform([2, 6, 3, 4]), out: out(), group: 0 }.fails("attribute `group`"),
    ]
);

fn check_groups(x: &Meta, channels: Dim, groups: i32) -> Result<()> {
    let even = channels.get().is_none_or(|n| n.is_multiple_of(groups as usize));
    x.require(even, || format!("a number of channels divisible by {groups} is needed"))
}

/// The largest channel of each group: `out[.., c, ..] = max(x[.., c * groups + g, ..])` over `g < groups`.
///
/// On a tie, the first of the largest gets the gradient. NaN counts as the largest number.
#[register_op(grad = Composed, composed)]
pub struct Maxout<V = Var> {
    /// At least one dimension of signed integers or floating-point numbers.
    #[input]
    pub x: V,
    /// `x` with `groups` times fewer channels.
    #[output]
    pub out: V,
    /// Number of channels in a group; it divides the number of channels.
    #[attr(min = 1)]
    pub groups: i32,
    /// The dimension of channels; negative counts from the end.
    #[attr(default = 1)]
    pub axis: i32,
}
impl Infer for Maxout<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.signed()?;
        let axis = self.x.axis("axis", self.axis.into())?;
        let mut dims = self.x.dims.clone();
        check_groups(&self.x, dims[axis], self.groups)?;
        dims[axis] = dims[axis] / i64::from(self.groups);
        self.out.set(self.x.dtype, dims);
        Ok(())
    }
}
impl Composition for Maxout<Expr> {
    fn compose(&mut self) {
        let groups = DimExpr::from(i64::from(self.groups));
        let mut dims = all_sizes(&self.x);
        let at = self.axis.rem_euclid(dims.len() as i32);
        dims[at as usize] = &dims[at as usize] / &groups;
        dims.insert(at as usize + 1, groups);
        let (k_tensor, k, axis, largest, sorted) = (None, 1, at + 1, true, true);
        let x = self.x.reshape_to(&dims).into();
        let best = emit(TopKV2 { x, k_tensor, out: New, indices: New, k, axis, largest, sorted }).out;
        self.out = best.squeeze(&[axis]);
    }
}
autobwd::samples!(
    Maxout,
    [
        Maxout { x: distinct([2, 6, 3, 4]), out: out(), groups: 2, axis: 1 },
        Maxout { x: distinct([2, 3, 4, 6]), out: out(), groups: 3, axis: -1 },
        Maxout { x: distinct([6]), out: out(), groups: 6, axis: 0 },
        Maxout { x: distinct([2, 3]), out: out(), groups: 1, axis: 1 },
        Maxout { x: distinct([0, 4]), out: out(), groups: 2, axis: 1 },
        Maxout { x: given([4], [2.0, 2.0, 1.0, f64::NAN]), out: out(), groups: 2, axis: 0 }
            .not_a_derivative("the first of two gets all of the gradient"),
        Maxout { x: integers_below(9, [2, 4]), out: out(), groups: 2, axis: 1 },
        Maxout { x: uniform([2, 6]), out: out(), groups: 4, axis: 1 }
            .fails("`X`: a number of channels divisible by 4 is needed"),
        Maxout { x: uniform([2, 6]), out: out(), groups: 2, axis: 2 }.fails("attribute `axis` = 2"),
        Maxout { x: uniform([2, 6]), out: out(), groups: 0, axis: 1 }.fails("attribute `groups`"),
        Maxout { x: integers_below(2, [2]).of(DType::Bool), out: out(), groups: 2, axis: 0 }
            .fails("`X`: signed or floating point numbers are needed"),
    ]
);

attr_enum! {
    /// Position of the channel dimension.
    pub enum ChannelLayout {
        /// The last dimension.
        Any = "AnyLayout",
        /// The second dimension.
        Nchw = "NCHW",
        /// The last dimension.
        Nhwc = "NHWC",
    }
}

/// Scale and bias for each channel: `out[.., c, ..] = x[.., c, ..] * scale[c] + bias[c]`.
#[register_op(grad = Composed, composed)]
pub struct AffineChannel<V = Var> {
    /// At least two dimensions, one for channels as `data_layout` says.
    #[input]
    pub x: V,
    /// One number for each channel.
    #[input]
    pub scale: V,
    /// One number for each channel.
    #[input]
    pub bias: V,
    /// Same shape as `x`.
    #[output]
    pub out: V,
    /// Which dimension has the channels: the last one (`NHWC`, `AnyLayout`) or the second (`NCHW`).
    #[attr(default = ChannelLayout::Any)]
    pub data_layout: ChannelLayout,
}
impl<V> AffineChannel<V> {
    fn layout(&self) -> DataLayout {
        match self.data_layout {
            ChannelLayout::Nchw => DataLayout::Nchw,
            ChannelLayout::Any | ChannelLayout::Nhwc => DataLayout::Nhwc,
        }
    }
}
impl Infer for AffineChannel<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.float()?;
        self.x.require(self.x.rank() > 1, || "at least two dimensions are needed".into())?;
        let channels = self.x.dims[self.layout().channels(self.x.rank())];
        for each in [&self.scale, &self.bias] {
            each.same_dtype(&self.x)?;
            let fits = each.dims.agrees(&[channels].into_iter().collect::<Dims>());
            each.require(fits, || format!("one number for each of {channels} channels is needed"))?;
        }
        self.out.like(&self.x);
        Ok(())
    }
}
impl Composition for AffineChannel<Expr> {
    fn compose(&mut self) {
        let axis = self.layout().axis();
        let (x, y) = ((&self.x).into(), (&self.scale).into());
        let scaled = emit(ElementwiseMul { x, y, out: New, axis }).out;
        self.out = emit(ElementwiseAdd { x: scaled.into(), y: (&self.bias).into(), out: New, axis }).out;
    }
}
autobwd::samples!(
    AffineChannel,
    [
        affine_channel(uniform([2, 3, 4, 5]), 5, ChannelLayout::Any),
        affine_channel(uniform([2, 3, 4]), 3, ChannelLayout::Nchw),
        affine_channel(uniform([2, 3, 4, 5]), 5, ChannelLayout::Nhwc),
        affine_channel(uniform([2, 3]), 3, ChannelLayout::Nchw),
        affine_channel(uniform([0, 3, 2]), 2, ChannelLayout::Any),
        affine_channel(uniform([3]), 3, ChannelLayout::Any).fails("`X`: at least two dimensions are needed"),
        affine_channel(uniform([2, 3, 4]), 4, ChannelLayout::Nchw)
            .fails("`Scale`: one number for each of 3 channels is needed"),
        AffineChannel { bias: uniform([1, 3]), ..affine_channel(uniform([2, 3]), 3, ChannelLayout::Any) }
            .fails("`Bias`: one number for each of 3 channels is needed"),
        affine_channel(integers_below(9, [2, 3]), 3, ChannelLayout::Any)
            .fails("`X`: floating point numbers are needed"),
        AffineChannel {
            bias: integers_below(9, [3]),
            ..affine_channel(uniform([2, 3]), 3, ChannelLayout::Any)
        }
        .fails("`Bias`: dtype int64 does not match"),
    ]
);

fn affine_channel(x: Draw, channels: usize, data_layout: ChannelLayout) -> AffineChannel<Draw> {
    AffineChannel { x, scale: uniform([channels]), bias: uniform([channels]), out: out(), data_layout }
}

/// Some columns of each matrix, one matrix after the other: `out[.., i * length + j] = x[i][.., start_index + j]`.
#[register_op(grad = Composed, composed)]
pub struct PartialConcat<V = Var> {
    /// At least one matrix, all of one shape and dtype, any.
    #[input]
    pub x: Vec<V>,
    /// `[rows, n * length]` for `n` matrices.
    #[output]
    pub out: V,
    /// The first column; negative counts from the end.
    #[attr(default = 0)]
    pub start_index: i32,
    /// The number of columns; −1 means all from the first one on.
    #[attr(default = -1, min = -1)]
    pub length: i32,
}
impl Infer for PartialConcat<Meta> {
    fn infer(&mut self) -> Result<()> {
        let [rows, columns] = columns_of(&self.x, self.start_index, self.length)?;
        self.out
            .set(self.x[0].dtype, [rows, columns * Dim::from(self.x.len())].into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Composition for PartialConcat<Expr> {
    fn compose(&mut self) {
        let parts: Vec<Expr> =
            self.x.iter().map(|x| some_columns(x, self.start_index, self.length)).collect();
        self.out = concat(&parts.iter().collect::<Vec<_>>(), 1);
    }
}

/// The sum of some columns of each matrix: `out[.., j] = x[0][.., start_index + j] + x[1][.., start_index + j] + …`.
#[register_op(grad = Composed, composed)]
pub struct PartialSum<V = Var> {
    /// At least one matrix of signed integers or floating-point numbers, all of one shape and dtype.
    #[input]
    pub x: Vec<V>,
    /// `[rows, length]`.
    #[output]
    pub out: V,
    /// The first column; negative counts from the end.
    #[attr(default = 0)]
    pub start_index: i32,
    /// The number of columns; −1 means all from the first one on.
    #[attr(default = -1, min = -1)]
    pub length: i32,
}
impl Infer for PartialSum<Meta> {
    fn infer(&mut self) -> Result<()> {
        self.x.iter().try_for_each(Meta::signed)?;
        let dims = columns_of(&self.x, self.start_index, self.length)?;
        self.out.set(self.x[0].dtype, dims.into_iter().collect::<Dims>());
        Ok(())
    }
}
impl Composition for PartialSum<Expr> {
    fn compose(&mut self) {
        let parts = self.x.iter().map(|x| some_columns(x, self.start_index, self.length));
        // The shape rule has refused no matrices.
        let Some(sum) = parts.reduce(|sum, part| sum + part) else { return };
        self.out = sum;
    }
}

/// Samples shared by both operators.
macro_rules! column_samples {
    ($op:ident) => {
        const _: () = {
            fn row(x: Vec<Draw>, start_index: i32, length: i32) -> $op<Draw> {
                $op { x, out: out(), start_index, length }
            }
            autobwd::samples!(
                $op,
                [
                    row(vec![uniform([2, 5]), uniform([2, 5])], 1, 3),
                    row(vec![uniform([3, 4]), uniform([3, 4]), uniform([3, 4])], -3, -1),
                    row(vec![uniform([2, 3])], 0, -1),
                    row(vec![uniform([2, 3]), uniform([2, 3])], -2, 1),
                    row(vec![uniform([0, 3]), uniform([0, 3])], 1, 2),
                    row(vec![uniform([2, 3]), uniform([2, 3])], 1, 0),
                    row(vec![integers_below(9, [2, 4]), integers_below(9, [2, 4])], 1, 2),
                    row(vec![], 0, -1).fails("`X`: at least one variable is needed"),
                    row(vec![uniform([3])], 0, -1).fails("`X`: a matrix is needed"),
                    row(vec![uniform([2, 3]), uniform([2, 4])], 0, -1)
                        .fails("`X`: shape [2, 4] does not match"),
                    row(vec![uniform([2, 3])], 4, -1).fails("attribute `start_index`: 4 is no column of 3"),
                    row(vec![uniform([2, 3])], 1, 3)
                        .fails("attribute `length`: 3 columns from column 1 on are not within 3"),
                    row(vec![uniform([2, 3])], 1, -2).fails("attribute `length`"),
                ]
            );
        };
    };
}
column_samples!(PartialConcat);
column_samples!(PartialSum);

/// Rows of the matrices, and the number of chosen columns.
fn columns_of(x: &[Meta], start: i32, length: i32) -> Result<[Dim; 2]> {
    let Some(first) = x.first() else {
        return Err(Error::new(ErrorKind::Slot, "`X`: at least one variable is needed"));
    };
    first.require(first.rank() == 2, || "a matrix is needed".into())?;
    x.iter().try_for_each(|x| x.same_as(first))?;
    let rows = first.dims[0];
    let Some(n) = first.dims[1].get() else {
        return Ok([rows, usize::try_from(length).map_or(Dim::UNKNOWN, Dim::from)]);
    };
    let from = if start < 0 { i64::from(start) + n as i64 } else { start.into() };
    let Some(left) = usize::try_from(from).ok().and_then(|from| n.checked_sub(from)) else {
        return Err(Error::attr("start_index", format!("{start} is no column of {n}")));
    };
    let columns = usize::try_from(length).unwrap_or(left);
    if columns > left {
        let text = format!("{length} columns from column {start} on are not within {n}");
        return Err(Error::attr("length", text));
    }
    Ok([rows, columns.into()])
}

fn some_columns(x: &Expr, start: i32, length: i32) -> Expr {
    let n = x.dim(1);
    let first = if start < 0 { &n + i64::from(start) } else { DimExpr::from(i64::from(start)) };
    let end = if length < 0 { n } else { &first + i64::from(length) };
    x.slice_to(1, &first, &end)
}
