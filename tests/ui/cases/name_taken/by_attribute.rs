use autobwd::{BlockId, NoGrad, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Repeat<V = Var> {
    #[input]
    pub x: V,
    #[output]
    pub out: V,
    #[attr("body")]
    pub times: i64,
    #[block]
    pub body: BlockId,
}

fn main() {}
