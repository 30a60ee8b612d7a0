use autobwd::op::OpInfo;

fn main() {
    let _ = |info: &OpInfo| info.lanes;
}
