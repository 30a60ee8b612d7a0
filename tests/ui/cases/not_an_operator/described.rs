use autobwd::{OpDesc, Var};

pub struct Square<V = Var> {
    pub x: V,
    pub out: V,
}

fn main() {
    let _ = |op: Square| OpDesc::from(op);
}
