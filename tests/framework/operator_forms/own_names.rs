//! An author's crate with types named like those of the prelude.
use autobwd::{Buf, Cx, Infer, Kernel, Meta, NoGrad, OpDesc, Var, register_op};

pub struct Option;
pub struct Result;
pub struct Vec;
pub struct String;
pub struct Some;
pub trait Op {}

#[register_op(grad = NoGrad, name = "own_concat")]
pub struct Concat<V = Var> {
    #[input]
    pub x: std::vec::Vec<V>,
    #[input]
    pub axis: std::option::Option<V>,
    #[output]
    pub out: V,
    #[attr(default = "C")]
    pub order: std::string::String,
    #[attr(default = [1, 2], "sections")]
    pub parts: std::vec::Vec<i64>,
    #[attr(default = ["a", "b"])]
    pub labels: std::vec::Vec<std::string::String>,
}
impl Infer for Concat<Meta> {
    fn infer(&mut self) -> autobwd::Result<()> {
        Ok(())
    }
}
impl Kernel for Concat<Buf<'_>> {
    fn run(&mut self, _: &Cx) -> autobwd::Result<()> {
        Ok(())
    }
}

#[test]
fn types_may_have_names_of_the_prelude() {
    let v = Var::EMPTY;
    let op = Concat { x: vec![v], axis: None, out: v, order: "F".into(), parts: vec![3], labels: vec![] };
    assert_eq!(OpDesc::from(op).ty, "own_concat");
}
