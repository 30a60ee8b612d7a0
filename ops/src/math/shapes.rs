//! Shapes, slices, pieces and dtypes.

macro_rules! shapes {
    ($methods:ident) => {
        $methods! {
            /// Adds elements of that value before and after each dimension, `[before, after]` for each.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2], vec![1.0_f32, 2.0])?);
            /// assert_eq!(x.pad(&[[1, 2]], 9.0).tensor()?.slice::<f32>()?, [9.0, 1.0, 2.0, 9.0, 9.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn pad(&self, paddings: &[[i32; 2]], value: f32) -> Expr {
                emit(Pad { x: self.into(), out: New, paddings: paddings.concat(), pad_value: value }).out
            }

            /// Reshapes to these dimensions; −1 is inferred, 0 copies the dimension.
            fn reshape(&self, shape: &[i32]) -> Expr {
                emit(Reshape2::of(self.into(), New, New, shape.to_vec())).out
            }

            /// The dimension of an axis, also where only a run knows it; negative axes count from the end. Fails for
            /// other axes when it is used.
            fn dim(&self, axis: i32) -> DimExpr { DimExpr::of(self, axis) }

            /// Reshapes to these dimensions, which may be computed when the program runs.
            fn reshape_to(&self, dims: &[DimExpr]) -> Expr { dim_expr::reshape_to(self, dims) }

            /// Broadcasts to these dimensions, which may be computed when the program runs.
            fn expand_to(&self, dims: &[DimExpr]) -> Expr { dim_expr::expand_to(self, dims) }

            /// The slice from `start` to `end`, exclusive, along an axis; the bounds may be computed when the program runs.
            fn slice_to(&self, axis: i32, start: &DimExpr, end: &DimExpr) -> Expr {
                dim_expr::slice_to(self, axis, start, end)
            }

            /// Adds elements of that value before and after each dimension; the numbers may be computed when the program
            /// runs.
            fn pad_to(&self, paddings: &[[DimExpr; 2]], value: f32) -> Expr {
                dim_expr::pad_by(self, paddings, value)
            }

            /// Permutes the axes.
            fn transpose(&self, axes: &[i32]) -> Expr {
                emit(Transpose2 { x: self.into(), out: New, x_shape: New, axis: axes.to_vec() }).out
            }

            /// Drops these axes where they have size 1; all such axes if empty.
            fn squeeze(&self, axes: &[i32]) -> Expr {
                emit(Squeeze2 { x: self.into(), out: New, x_shape: New, axes: axes.to_vec() }).out
            }

            /// Inserts axes of size 1 at these positions.
            fn unsqueeze(&self, axes: &[i32]) -> Expr {
                emit(Unsqueeze2 {
                    x: self.into(),
                    axes_tensor: None,
                    axes_tensor_list: vec![],
                    out: New,
                    x_shape: New,
                    axes: axes.to_vec(),
                })
                .out
            }

            /// Merges the axes from `first` to `last` into one.
            fn flatten(&self, first: i32, last: i32) -> Expr {
                let (start_axis, stop_axis) = (first, last);
                let op = FlattenContiguousRange { x: self.into(), out: New, x_shape: New, start_axis, stop_axis };
                emit(op).out
            }

            /// Broadcasts to this shape: repeats axes of size 1 and adds axes in front; −1 keeps an axis.
            fn expand(&self, shape: &[i32]) -> Expr {
                emit(ExpandV2 {
                    x: self.into(),
                    shape_input: None,
                    expand_shapes_tensor: vec![],
                    out: New,
                    shape: shape.to_vec(),
                })
                .out
            }

            /// Repeats the tensor `times` along each axis.
            fn tile(&self, times: &[i32]) -> Expr {
                emit(Tile {
                    x: self.into(),
                    repeat_times_input: None,
                    repeat_times_tensor: vec![],
                    out: New,
                    repeat_times: times.to_vec(),
                })
                .out
            }

            /// The slice from `start` to `end`, exclusive, along an axis; negative positions count from the end.
            fn slice(&self, axis: i32, start: i32, end: i32) -> Expr {
                let (axes, starts, ends) = (vec![axis], vec![start], vec![end]);
                emit(Slice { axes, starts, ends, ..Slice::of(self.into(), New) }).out
            }

            /// Reverses the order along these axes.
            fn flip(&self, axes: &[i32]) -> Expr {
                emit(Flip { x: self.into(), out: New, axis: axes.to_vec() }).out
            }

            /// The positions of the elements that are not 0, int64 `[k, rank]`: data decides `k`.
            ///
            /// ```
            /// use autobwd::Tensor;
            /// use autobwd_ops::Math;
            ///
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([2, 2], vec![0.0_f32, 3.0, -1.0, 0.0])?);
            /// assert_eq!(x.nonzero().tensor()?, Tensor::from_vec([2, 2], vec![0_i64, 1, 1, 0])?);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn nonzero(&self) -> Expr {
                emit(WhereIndex { condition: self.into(), out: New }).out
            }

            /// The elements where a mask of the same shape is true, `[k]`: data decides `k`.
            fn masked_select(&self, mask: &Expr) -> Expr {
                emit(MaskedSelect { x: self.into(), mask: mask.into(), y: New }).y
            }

            /// The distinct elements in ascending order, and for each element of the flattened tensor its position among
            /// them.
            fn unique(&self) -> (Expr, Expr) {
                let op = emit(Unique {
                    x: self.into(),
                    out: New,
                    indices: None,
                    index: Some(New),
                    counts: None,
                    axis: vec![],
                    is_sorted: true,
                    dtype: DType::I64,
                });
                (op.out.clone(), op.index.unwrap_or(op.out))
            }

            /// The slices with these indices along an axis.
            fn gather(&self, index: &Expr, axis: i32) -> Expr {
                emit(Gather { x: self.into(), index: index.into(), out: New, axis }).out
            }

            /// The slices with these indices, `[n]`, along an axis.
            ///
            /// ```
            /// # use autobwd::Tensor;
            /// # use autobwd_ops::Math;
            /// let tape = autobwd::eager();
            /// let x = tape.constant(Tensor::from_vec([3], vec![1.0_f32, 2.0, 3.0])?);
            /// let index = tape.constant(Tensor::from_vec([2], vec![2_i64, 0])?);
            /// assert_eq!(x.index_select(&index, 0).tensor()?.slice::<f32>()?, [3.0, 1.0]);
            /// # Ok::<(), autobwd::Error>(())
            /// ```
            fn index_select(&self, index: &Expr, axis: i32) -> Expr {
                emit(IndexSelect { x: self.into(), index: index.into(), out: New, dim: axis }).out
            }

            /// Splits into pieces of these sizes along an axis.
            fn split(&self, sizes: &[i32], axis: i32) -> Vec<Expr> {
                let out = sizes.iter().map(|_| New).collect();
                emit(Split {
                    x: self.into(),
                    out,
                    axis,
                    num: 0,
                    sections: sizes.to_vec(),
                    axis_tensor: None,
                    sections_tensor_list: vec![],
                })
                .out
            }

            /// Converts to another dtype.
            fn cast(&self, dtype: DType) -> Expr {
                emit(Cast { x: self.into(), out: New, in_dtype: self.dtype(), out_dtype: dtype }).out
            }

            /// A copy with a name of its own.
            fn copy(&self) -> Expr { emit(Assign { x: self.into(), out: New }).out }

            /// The same elements without gradient flow, as [`stop_gradient`](Expr::stop_gradient).
            fn detach(&self) -> Expr { self.clone().stop_gradient() }
        }
    };
}
pub(super) use shapes;
