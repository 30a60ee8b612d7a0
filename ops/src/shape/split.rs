//! Splitting of tensors.

use autobwd::{
    Buf, Cx, Error, GradCx, GradRule, Infer, Kernel, Meta, Result, Var,
    check::*,
    operators::{Concat, row_bytes, same_count, slice_part},
    register_op,
    tensor::Dim,
};

/// Splits a tensor along an axis: `out[0], out[1], … = x`.
#[register_op(grad = SplitGrad)]
pub struct Split<V = Var> {
    /// Any shape, any dtype.
    #[input]
    pub x: V,
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
        let axis = self.x.axis("axis", self.axis.into())?;
        let (num, sections) = (self.num as usize, &self.sections);
        if num == 0 && sections.is_empty() {
            return Err(Error::attr("num", "0 needs `sections`, which has a length for each part"));
        }
        same_count("Out", self.out.len(), if num == 0 { sections.len() } else { num })?;
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
        let (axis, mut at) = (self.x.axis(self.axis.into()), 0);
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
        Split { x: uniform([4, 3]), out: vec![out(), out()], axis: 0, num: 2, sections: vec![] },
        Split { x: uniform([2, 6]), out: vec![out(), out(), out()], axis: -1, num: 3, sections: vec![] },
        Split {
            x: uniform([2, 6, 3]),
            out: vec![out(), out(), out()],
            axis: 1,
            num: 0,
            sections: vec![1, -1, 2]
        },
        Split { x: uniform([5]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![5, 0] },
        Split { x: integers_below(9, [2, 4]), out: vec![out(), out()], axis: 1, num: 2, sections: vec![] },
        Split { x: uniform([3, 4]), out: vec![out(), out()], axis: 1, num: 2, sections: vec![1, 2, 1] },
        Split { x: uniform([4]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![] }
            .fails("attribute `num`: 0 needs `sections`"),
        Split { x: uniform([5, 2]), out: vec![out(), out()], axis: 0, num: 2, sections: vec![] }
            .fails("`X`: a length divisible by 2 is needed"),
        Split { x: uniform([5, 2]), out: vec![out(), out()], axis: 0, num: 0, sections: vec![3, 3] }
            .fails("`X`: a length of 6 is needed"),
        Split { x: uniform([4, 2]), out: vec![out(), out(), out()], axis: 0, num: 2, sections: vec![] }
            .fails("`Out`: 2 variables are needed, not 3"),
    ]
);

/// Length of each of `num` equal pieces.
fn equal(x: &Meta, axis: usize, num: usize) -> Result<Dim> {
    match x.dims[axis].get() {
        Some(n) if n % num != 0 => Err(x.wrong(&format!("a length divisible by {num} is needed"))),
        n => Ok(n.map_or(Dim::UNKNOWN, |n| (n / num).into())),
    }
}

/// Lengths of the pieces given by `sections`.
fn lengths(x: &Meta, axis: usize, sections: &[i32]) -> Result<Vec<Dim>> {
    let (mut lengths, mut rest, mut sum) = (vec![], None, 0);
    for (i, length) in sections.iter().enumerate() {
        match usize::try_from(*length) {
            Ok(length) => {
                sum += length;
                lengths.push(length.into());
            }
            Err(_) if *length < -1 => {
                return Err(Error::attr("sections", format!("{length} is not a length")));
            }
            Err(_) if rest.replace(i).is_some() => return Err(Error::attr("sections", "-1 is given twice")),
            Err(_) => lengths.push(Dim::UNKNOWN),
        }
    }
    match (x.dims[axis].get(), rest) {
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
            g.push(Concat { x: dout, out: dx, axis: fwd.axis });
        }
    }
}
