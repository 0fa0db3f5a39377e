/** One real run against a broker: returns its evidence, or throws the problem. */
interface Scenario {
    String run(Lab lab) throws Exception;

    /** The broker did something other than the scenario expects. */
    final class Failed extends RuntimeException {
        Failed(String what) {
            super(what);
        }
    }

    /** This client version has no such feature, so there is nothing to run. */
    final class NotApplicable extends RuntimeException {
        NotApplicable(String why) {
            super(why);
        }
    }
}
