use autobwd::{NoGrad, OpDesc, Var, register_op};

#[register_op(grad = NoGrad)]
pub struct Seed<V = Var> {
    #[attr]
    pub seed: i64,
}

fn main() {
    let _ = |op: Seed| OpDesc::from(op);
}
