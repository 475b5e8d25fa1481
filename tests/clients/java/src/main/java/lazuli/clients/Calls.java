package lazuli.clients;

/** Runs calls of a client library, prints each operation's name and outcome, and counts them. */
final class Calls {
    interface Call<T> {
        T run() throws Exception;
    }

    interface Action {
        void run() throws Exception;
    }

    private String library = "";
    private int passed;
    private int failed;

    /** Runs a group of calls. An exception between the calls counts as one failure and ends the group. */
    void of(String library, Action group) {
        this.library = library;
        try {
            group.run();
        } catch (Exception error) {
            report("what lies between the calls", error);
        }
    }

    /** Runs a call and returns its result, or null after a failure. */
    <T> T get(String operation, Call<T> call) {
        try {
            T result = call.run();
            report(operation, null);
            return result;
        } catch (Exception error) {
            report(operation, error);
            return null;
        }
    }

    void run(String operation, Action action) {
        get(operation, () -> {
            action.run();
            return null;
        });
    }

    /** Runs a call that the server must refuse with an error code, which clients put into the exception. */
    void refused(String operation, String code, Action action) {
        run(operation, () -> {
            try {
                action.run();
            } catch (Exception error) {
                if (describe(error).contains(code)) {
                    return;
                }
                throw error;
            }
            throw new AssertionError("not refused with " + code);
        });
    }

    /** Says that an operation is not called, and why. */
    void leaveOut(String operation, String reason) {
        System.out.println("left out  " + library + ": " + operation + ": " + reason);
    }

    static void expect(Object got, Object wanted) {
        if (!wanted.equals(got)) {
            throw new IllegalStateException("got " + got + ", wanted " + wanted);
        }
    }

    int failed() {
        return failed;
    }

    void summarize() {
        System.out.println(passed + " passed, " + failed + " failed");
    }

    private void report(String operation, Throwable error) {
        if (error == null) {
            passed++;
            System.out.println("passed  " + library + ": " + operation);
        } else {
            failed++;
            System.out.println("FAILED  " + library + ": " + operation);
            System.out.println(describe(error).indent(8));
        }
    }

    /** The message, and the error code where the library keeps it apart. */
    private static String describe(Throwable error) {
        StringBuilder text = new StringBuilder(error.toString());
        if (error instanceof com.azure.data.tables.models.TableTransactionFailedException transaction) {
            text.append(' ').append(transaction.getValue().getErrorCode());
        }
        if (error instanceof com.microsoft.azure.storage.StorageException old) {
            text.append(' ').append(old.getHttpStatusCode()).append(' ').append(old.getErrorCode());
        }
        for (Throwable cause = error.getCause(); cause != null; cause = cause.getCause()) {
            text.append("; because of ").append(cause);
        }
        if (!(error instanceof com.azure.core.exception.AzureException) && error.getStackTrace().length > 0) {
            text.append(" at ").append(error.getStackTrace()[0]);
        }
        return text.toString();
    }
}
