//! Splitting of tensors.

use autobwd::{
    Buf, Cx, DType, Error, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*,
    operators::{Concat, constant_int, constant_ints, known_int, row_bytes, same_count, slice_part},
    register_op,
    tensor::Dim,
};

/// Splits a tensor along an axis: `out[0], out[1], … = x`.
#[register_op(grad = SplitGrad, infallible, any_dtype, primitive)]
pub struct Split<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
    /// The dimension, in place of attribute `axis`: int32 or int64, one element.
    #[input(constant)]
    pub axis_tensor: Option<V>,
    /// The lengths, in place of attribute `sections`: int32 or int64, one element each.
    #[input(constant)]
    pub sections_tensor_list: Vec<V>,
    /// The pieces, which differ from `x` in dimension `axis` only.
    #[output]
    pub out: Vec<V>,
    /// The dimension; negative counts from the end.
    #[attr(default = 0)]
    pub axis: i32,
    /// Number of equal pieces, in place of `sections`; 0 if `sections` is used.
    #[attr(default = 0, min = 0)]
    pub num: i32,
    /// Lengths of the pieces; one −1 stands for the remainder.
    #[attr(default = [])]
    pub sections: Vec<i32>,
}
impl Infer for Split<Meta> {
    fn infer(&mut self) -> Result<()> {
        let axis = constant_int(self.axis_tensor.as_ref(), self.axis.into())?;
        let axis = axis.map(|axis| self.x.axis("axis", axis)).transpose()?;
        let attr = self.sections.iter().map(|n| i64::from(*n));
        let (num, sections) = (self.num as usize, &constant_ints(&self.sections_tensor_list, None, attr)?);
        if num == 0 && sections.is_empty() {
            return Err(Error::attr("num", "0 needs `sections`, which has a length for each part"));
        }
        same_count("Out", self.out.len(), if num == 0 { sections.len() } else { num })?;
        let Some(axis) = axis else {
            for out in &mut self.out {
                out.like(&self.x);
                out.dims.iter_mut().for_each(|dim| *dim = Dim::UNKNOWN);
            }
            return Ok(());
        };
        let lengths =
            if num == 0 { lengths(&self.x, axis, sections)? } else { vec![equal(&self.x, axis, num)?; num] };
        for (out, length) in self.out.iter_mut().zip(lengths) {
            out.like(&self.x);
            out.dims[axis] = length;
        }
        Ok(())
    }
}
impl Kernel for Split<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        let axis = known_int(self.axis_tensor.as_ref(), self.axis.into())?;
        let (axis, mut at) = (self.x.axis(axis), 0);
        for out in &mut self.out {
            let width = row_bytes(out, axis);
            slice_part(&self.x, axis, &mut at, width, Some(out))?;
        }
        Ok(())
    }
}
autobwd::samples!(
    Split,
    [
        split(uniform([4, 3]), 2, 0, 2, vec![]),
        split(uniform([2, 6]), 3, -1, 3, vec![]),
        split(uniform([2, 6, 3]), 3, 1, 0, vec![1, -1, 2]),
        split(uniform([5]), 2, 0, 0, vec![5, 0]),
        split(integers_below(9, [2, 4]), 2, 1, 2, vec![]),
        split(uniform([3, 4]), 2, 1, 2, vec![1, 2, 1]),
        Split {
            sections_tensor_list: vec![integers(&[1]), integers(&[-1]).of(DType::I32)],
            ..split(uniform([5, 2]), 2, 0, 0, vec![-1, -1])
        },
        Split { axis_tensor: Some(integers(&[1])), ..split(uniform([3, 4]), 2, 0, 2, vec![]) },
        Split { axis_tensor: Some(integers(&[2])), ..split(uniform([3, 4]), 2, 0, 2, vec![]) }
            .fails("attribute `axis` = 2"),
        Split { sections_tensor_list: vec![integers(&[-2])], ..split(uniform([3]), 1, 0, 0, vec![]) }
            .fails("attribute `sections`: -2 is not a length"),
        split(uniform([4]), 2, 0, 0, vec![]).fails("attribute `num`: 0 needs `sections`"),
        split(uniform([5, 2]), 2, 0, 2, vec![]).fails("`X`: a length divisible by 2 is needed"),
        split(uniform([5, 2]), 2, 0, 0, vec![3, 3]).fails("`X`: a length of 6 is needed"),
        split(uniform([4, 2]), 3, 0, 2, vec![]).fails("`Out`: 2 variables are needed, not 3"),
    ]
);

fn split(x: Draw, pieces: usize, axis: i32, num: i32, sections: Vec<i32>) -> Split<Draw> {
    Split {
        x,
        axis_tensor: None,
        sections_tensor_list: vec![],
        out: vec![out(); pieces],
        axis,
        num,
        sections,
    }
}

/// Length of each of `num` equal pieces.
fn equal(x: &Meta, axis: usize, num: usize) -> Result<Dim> {
    match x.dims[axis].get() {
        Some(n) if n % num != 0 => Err(x.wrong(&format!("a length divisible by {num} is needed"))),
        _ => Ok(x.dims[axis] / Dim::from(num)),
    }
}

/// Lengths of the pieces given by `sections`.
fn lengths(x: &Meta, axis: usize, sections: &[Option<i64>]) -> Result<Vec<Dim>> {
    let (mut lengths, mut rest, mut sum) = (vec![], None, 0usize);
    for (i, length) in sections.iter().enumerate() {
        let Some(length) = length else {
            lengths.push(Dim::UNKNOWN);
            continue;
        };
        match usize::try_from(*length) {
            Ok(length) => {
                sum = sum.saturating_add(length);
                lengths.push(length.into());
            }
            Err(_) if *length < -1 => {
                return Err(Error::attr("sections", format!("{length} is not a length")));
            }
            Err(_) if rest.replace(i).is_some() => return Err(Error::attr("sections", "-1 is given twice")),
            Err(_) => lengths.push(Dim::UNKNOWN),
        }
    }
    match (x.dims[axis].get().filter(|_| !sections.contains(&None)), rest) {
        (Some(n), Some(rest)) if n >= sum => lengths[rest] = (n - sum).into(),
        (Some(_), Some(_)) => return Err(x.wrong(&format!("a length of at least {sum} is needed"))),
        (Some(n), None) if n != sum => return Err(x.wrong(&format!("a length of {sum} is needed"))),
        _ => {}
    }
    Ok(lengths)
}

/// `dx = concat(dout)`.
#[derive(Debug)]
pub struct SplitGrad;
impl GradRule<Split> for SplitGrad {
    fn emit(fwd: &Split, g: &mut GradCx<'_>) {
        if let Some(dx) = g.wanted(fwd.x) {
            let dout = fwd.out.iter().map(|out| g.grad(*out)).collect();
            g.push(Concat { x: dout, axis_tensor: fwd.axis_tensor, out: dx, axis: fwd.axis });
        }
    }
}
