use autobwd::{Attrs, Buf, Cx, Kernel, NoGrad, Result, Var, register_op};

#[derive(Attrs, Clone, Copy, Debug)]
pub struct Rows {
    #[attr("size", default = 1)]
    pub rows: i64,
}
#[derive(Attrs, Clone, Copy, Debug)]
pub struct Columns {
    #[attr("size", default = 1)]
    pub columns: i64,
}
#[register_op(grad = NoGrad)]
pub struct Grid<V = Var> {
    #[input]
    pub x: V,
    #[output(like = x)]
    pub out: V,
    #[attrs]
    pub rows: Rows,
    #[attrs]
    pub columns: Columns,
}
impl Kernel for Grid<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> Result<()> {
        Ok(())
    }
}

fn main() {}
